"""Parts of a study that takes days: which of its runs may be computed now; the others are read if they exist."""

from __future__ import annotations

from collections.abc import Iterable


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
