"""What a batch shows while it runs: a table that lives in a terminal, plain lines everywhere else."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

LIFE_SECONDS = 60.0
"""How often a log hears that a notebook is still running."""


@dataclass
class Row:
    """One notebook that runs."""

    name: str
    usual: float | None
    began: float
    said: float
    cell: str = "-"
    says: str = ""

    def text(self, state: str, width: int) -> str:
        """Return the row as one line: name, state, cell, time taken, what is left if it goes as last time, and says.

        Last time's runs may have been read, not computed: once its time has passed, it says nothing.
        """
        elapsed = time.monotonic() - self.began
        line = f"{self.name:<{width}}  {state:<8}  {self.cell:>7}  {clock(elapsed):>7}"
        if state != "running":
            return line
        estimate = f"about {clock(self.usual - elapsed)} left" if self.usual and self.usual > elapsed else "-"
        return f"{line}  {estimate}  {self.says}".rstrip()


class Board:
    """Finished notebooks scroll by, one row each; those that run stay below and are redrawn in place.

    On a stream that is no terminal, a line is printed when a notebook starts and ends, and once a minute in between.
    """

    def __init__(self, stream: TextIO, names: Sequence[str] = ()) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self.width = max((len(name) for name in names), default=8)
        self.rows: dict[str, Row] = {}
        self.counts = {"done": 0, "failed": 0}
        self.waiting = 0
        self.drawn: list[str] = []
        self.began = time.monotonic()

    def total(self, number: int) -> None:
        """Say how many notebooks there are to run, and head the table."""
        self.waiting = number
        if number and self.live:
            self.line(f"{'notebook':<{self.width}}  {'state':<8}  {'cell':>7}  {'elapsed':>7}  estimate")

    def started(self, name: str, usual: float | None) -> None:
        """Add a row; ``usual`` is how many seconds it took the last time."""
        self.rows[name] = Row(name, usual, began=time.monotonic(), said=time.monotonic())
        self.waiting -= 1
        if not self.live:
            self.line(f"{name}  started{'' if usual is None else f', about {clock(usual)}'}")

    def cell(self, name: str, cell: int | None, cells: int | None, says: str = "") -> None:
        """Say which of a notebook's cells runs, and what it says of its progress."""
        self.rows[name].says = says
        if cell is not None:
            self.rows[name].cell = f"{cell}/{cells}"

    def ended(self, name: str, state: str) -> None:
        """Turn a row into one that stays."""
        self.counts[state] += 1
        self._draw([])
        self.line(self.rows.pop(name).text(state, self.width))

    def show(self) -> None:
        """Bring the terminal up to date; elsewhere give a sign of life when one is due."""
        if self.live:
            columns = shutil.get_terminal_size().columns - 1
            rows = [row.text("running", self.width) for row in self.rows.values()]
            self._draw([row[:columns] for row in [*rows, *([f"{self.waiting} waiting"] if self.waiting else [])]])
            return
        for row in self.rows.values():
            if time.monotonic() - row.said >= LIFE_SECONDS:
                row.said = time.monotonic()
                self.line(row.text("running", self.width))

    def line(self, text: str) -> None:
        """Print a line that stays, above the rows that live."""
        below = self.drawn
        self._draw([])
        self.stream.write(f"{text}\n")
        self.stream.flush()
        self._draw(below)

    def close(self, remarks: Sequence[str]) -> None:
        """Clear what lives and end with a count, and with what there is to say about failures."""
        self._draw([])
        self.rows.clear()
        counts = ", ".join(f"{number} {state}" for state, number in self.counts.items() if number)
        for text in [*([f"{counts} in {clock(time.monotonic() - self.began)}"] if counts else []), *remarks]:
            self.line(text)

    def _draw(self, rows: list[str]) -> None:
        if rows == self.drawn:
            return
        if self.drawn:
            self.stream.write(f"\x1b[{len(self.drawn)}F\x1b[J")
        self.stream.write("".join(f"{row}\n" for row in rows))
        self.stream.flush()
        self.drawn = rows


def clock(seconds: float) -> str:
    """Return a duration as one reads it off a clock.

    >>> clock(63), clock(3600)
    ('1:03', '1:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
