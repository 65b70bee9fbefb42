"""Parts of a study that takes days: which of its runs may be computed now; the others are read if they exist."""

from __future__ import annotations

from collections.abc import Iterable


def covers(parts: Iterable[str], *words: object) -> bool:
    """Tell whether the run that these words describe is in one of the parts.

    A part names some of a run's words, joined by slashes; "all" stands for every run.

    >>> covers(["AVG/seed 0"], "AVG", "1.0", "seed 0"), covers(["AVG/seed 0"], "AVG", "1.0", "seed 1"), covers(["all"])
    (True, False, True)
    """
    told = {"all", *map(str, words)}
    return any({word.strip() for word in part.split("/")} <= told for part in parts)
