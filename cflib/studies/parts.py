"""Parts of a study that takes days: which of its runs may be computed now; the others are read if they exist."""

from __future__ import annotations

from collections.abc import Container, Iterable


class Parts:
    """The parts that were asked for, and whether each of them fits any run: a misspelt one would compute nothing.

    A part names some of a run's words, joined by slashes (as may be words themselves); "all" stands for every run and
    "none" for no run.

    >>> some = Parts(["AVG/seed 0", "kernels/WNN"])
    >>> some.cover("AVG", "1.0", "seed 0"), some.cover("AVG", "1.0", "seed 1"), some.cover("kernels/WNN", "seed 0")
    (True, False, True)
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._asked = {name: {word.strip() for word in name.split("/")} for name in names}
        self._unmet = set(self._asked) - {"all", "none"}
        self._words: set[str] = set()

    def cover(self, *words: object) -> bool:
        """Tell whether the run that these words describe is in one of the parts."""
        told = {one for word in words for one in str(word).split("/")} - {""}
        fitting = {name for name, words_of in self._asked.items() if words_of <= told | {"all"}}
        self._words |= told
        self._unmet -= fitting
        return bool(fitting)

    def check(self) -> None:
        """Raise ``ValueError`` for a part that fits none of the runs asked about so far, with the words that do."""
        if self._unmet:
            there = ", ".join(sorted(self._words))
            raise ValueError(f"no run here fits {', '.join(sorted(self._unmet))}; join these by slashes: {there}")


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
