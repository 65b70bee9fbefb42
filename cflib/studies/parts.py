"""Parts of a study that takes days: which of its runs may be computed now; the others are read if they exist."""

from __future__ import annotations

from collections.abc import Container, Iterable


def covers(parts: Iterable[str], *words: object) -> bool:
    """Tell whether the run that these words describe is in one of the parts.

    A part names some of a run's words, joined by slashes (as may be words themselves); "all" stands for every run.

    >>> covers(["AVG/seed 0"], "AVG", "1.0", "seed 0"), covers(["AVG/seed 0"], "AVG", "1.0", "seed 1"), covers(["all"])
    (True, False, True)
    >>> covers(["kernels/WNN"], "kernels/WNN", "seed 0"), covers(["kernels/seed 0"], "kernels/WNN", "seed 0")
    (True, True)
    """
    told = {"all", *(one for word in words for one in str(word).split("/"))}
    return any({word.strip() for word in part.split("/")} <= told for part in parts)


def seeds_there(found: Container[object], names: Iterable[tuple[object, ...]], most: int) -> int:
    """Count the seeds, from 0 on and up to ``most``, with which every one of the names is found.

    A run's name ends with its seed.

    >>> seeds_there({("IID", 0), ("IID", 1), ("IID", 3), ("LDA", 0)}, [("IID",)], most=4)
    2
    >>> seeds_there({("IID", 0), ("IID", 1), ("IID", 3), ("LDA", 0)}, [("IID",), ("LDA",)], most=4)
    1
    """
    wanted = list(names)
    return next((seed for seed in range(most) if any((*name, seed) not in found for name in wanted)), most)
