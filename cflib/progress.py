"""One line that says how far a long run is, in a terminal, in a notebook and in a log file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from cflib.files import write_atomically


class Progress:
    """An updating text line; a context manager, so that the last word stays visible.

    In a terminal the line is rewritten; in a notebook one output is updated (it survives in static pages, which
    widgets do not) and the file that ``CFLIB_PROGRESS`` names, for whoever executes the notebook; elsewhere a line is
    printed now and then, so that a log shows life without filling up. The time left is reckoned from the rounds
    computed here, not from those that a checkpoint, another run or a record had.
    """

    def __init__(self, title: str, total: int, *, stream: TextIO | None = None, enabled: bool = True) -> None:
        self.title, self.total, self.enabled = title, total, enabled
        self.stream = stream or sys.stderr
        self.handle: Any = None
        self.notebook = enabled and stream is None and _in_notebook()
        self.began = time.monotonic()
        self.due = 0.0
        self.line = ""
        self.before = self.found = self.resumed = 0
        self.updated = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.notebook and self.handle is not None and error is None:
            self._display("")  # so that a page looks the same whether its runs were computed or read
        elif self.enabled and self.line:
            self._show(last=True)

    def update(self, done: int, **facts: object) -> None:
        """Say that ``done`` rounds of the run under way are finished, with a few facts such as the accuracy."""
        finished, elapsed = self.before + done, time.monotonic() - self.began
        computed, self.updated = finished - self.found, True
        left = elapsed / computed * (self.total - finished) if computed else float("nan")
        words = [f"{name} {value}" for name, value in facts.items()]
        count = f"round {finished}/{self.total}"
        self.line = "  ".join([self.title, count, *words, f"{elapsed:.0f} s, about {left:.0f} s left"])
        if self.enabled and time.monotonic() >= self.due:
            self._show()

    def resume(self, rounds: int) -> None:
        """Say that the run under way begins with so many rounds that were computed before."""
        self.found += rounds - self.resumed
        self.resumed = rounds

    def skip(self, rounds: int) -> None:
        """Count the rounds of a run as finished and go on to the next; without an update they were only read."""
        self.before += rounds
        self.found += 0 if self.updated else rounds - self.resumed
        self.updated, self.resumed = False, 0

    @contextmanager
    def more(self, rounds: int) -> Iterator[None]:
        """Count rounds that turn out to be needed before the run under way can begin."""
        self.total += rounds
        yield
        self.skip(rounds)

    def _show(self, *, last: bool = False) -> None:
        if self.notebook:
            self._display(self.line)
            self.due = time.monotonic() + 1
        elif self.stream.isatty():
            self.stream.write("\r\x1b[2K" + self.line[:160] + ("\n" if last else ""))
            self.due = time.monotonic() + 0.2
        else:
            self.stream.write(self.line + "\n")
            self.due = time.monotonic() + 60
        self.stream.flush()

    def _display(self, text: str) -> None:
        from IPython import display

        page: Any = display  # IPython carries no types
        if named := os.environ.get("CFLIB_PROGRESS"):
            write_atomically(Path(named), text, durable=False)
        if self.handle is None:
            self.handle = page.display(page.Pretty(text), display_id=True)
        else:
            self.handle.update(page.Pretty(text))


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell"
