"""Many notebooks run as one batch: started one by one, watched, stopped cleanly, and resumed.

Each notebook has a process of its own (``cflib.execution``). Its executed copy appears only when it is complete, and
says what made it: the same command again runs what is missing or out of date, and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cflib.board import Board
from cflib.execution import environment, fingerprint
from cflib.files import write_atomically
from cflib.jobs import Job

MINUTES: Mapping[str, float | None] = {"smoke": 5, "quick": 30, "long": None, "paper": None}
"""The wall-clock limit of a notebook, by preset."""

GRACE_SECONDS = 10.0
"""How long an interrupted notebook may take to save a checkpoint before it is killed."""

TICK_SECONDS = 0.1
WORKER = (sys.executable, "-P", "-m", "cflib.execution")


@dataclass
class Attempt:
    """A job that has been started."""

    job: Job
    work: Path
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)

    @property
    def progress(self) -> dict[str, int]:
        """The kernel's process group, the cell that runs and their number, as far as they are known."""
        return dict(_read(self.work / "progress.json"))

    @property
    def says(self) -> str:
        """The progress line of the runs that the notebook computes now, if any."""
        try:
            return (self.work / "says.txt").read_text("utf-8")
        except OSError:
            return ""

    @property
    def complete(self) -> bool:
        """Whether there is an executed copy to publish."""
        return (self.work / "result.ipynb").is_file()


def run(
    jobs: Sequence[Job], *, at_once: int = 1, minutes: float | None = None, force: bool = False, board: Board
) -> int:
    """Run the jobs whose executed copies are not up to date and return an exit code.

    0 if all went well, 1 if a notebook failed or took longer than ``minutes`` (0: no limit; None: its preset's own),
    130 or 143 if a signal stopped the batch. A failing notebook does not stop the others.
    """
    if at_once < 1:
        raise ValueError(f"{at_once} notebooks at once: at least one")
    waiting = [job for job in jobs if force or not job.fresh]
    for job in jobs:
        if job not in waiting:
            board.line(f"{job.name}  up to date (--force runs it again)")
    for place in sorted({job.output.parent for job in waiting}):
        _check_writable(place)
    board.total(len(waiting))
    running: list[Attempt] = []
    failures: list[str] = []
    with _signals() as caught:
        try:
            while (waiting or running) and not caught:
                # One kernel starts at a time: kernels that choose their ports together can choose the same.
                if waiting and len(running) < at_once and all("cell" in one.progress for one in running):
                    running.append(_start(waiting.pop(0)))
                    board.started(running[-1].job.name, running[-1].job.seconds)
                for one in list(running):
                    board.cell(one.job.name, one.progress.get("cell"), one.progress.get("cells"), one.says)
                    if _ended(one, minutes, caught):
                        running.remove(one)
                        error = _conclude(one)
                        board.ended(one.job.name, "failed" if error else "done")
                        failures += [error] if error else []
                board.show()
                time.sleep(TICK_SECONDS)
        finally:
            _stop(running, caught)
            for one in running:
                # What was completed in the last moment is kept; what was cut short is no failure to report.
                _conclude(one) if one.complete else _clear(one)
    board.close([*failures, *(["stopped: the same command goes on from here"] if caught else [])])
    return 128 + caught[0] if caught else int(bool(failures))


def _start(job: Job) -> Attempt:
    work = Path(tempfile.mkdtemp(prefix="cflib-run-")).resolve()
    # The copy fixes what is executed: an edit meanwhile makes the result out of date, never wrongly stamped.
    source = Path(shutil.copyfile(job.source, work / "source.ipynb"))
    base = job.source.parent
    request = {
        "source": job.source.name,
        "output": (
            job.output.relative_to(base) if job.output.is_relative_to(base) else Path(job.output.name)
        ).as_posix(),
        "parameters": dict(job.parameters),
        "fingerprint": fingerprint(source, job.parameters),
    }
    (work / "request.json").write_text(json.dumps(request), encoding="utf-8")
    around = environment(work)
    if job.verdicts is not None:
        around["CFLIB_RESULTS"] = str(job.verdicts)
    with (work / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*WORKER, str(work)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=job.source.parent,
            env=around,
            start_new_session=True,
        )
    return Attempt(job, work, process)


def _ended(one: Attempt, minutes: float | None, caught: list[int]) -> bool:
    limit = MINUTES[one.job.preset] if minutes is None else minutes
    if one.process.poll() is None:
        if not limit or time.monotonic() - one.began < 60 * limit:
            return False
        _stop([one], caught)
        message = f"not done after {limit:g} minutes; --timeout MINUTES gives it more, --timeout 0 all it needs"
        (one.work / "error.json").write_text(json.dumps({"name": "TimeLimit", "message": message}), encoding="utf-8")
    return True


def _conclude(one: Attempt) -> str | None:
    """Publish the executed copy of a process that has ended; or keep what there is, and return what went wrong."""
    _signal_groups(one, signal.SIGKILL)
    saved = True
    try:
        if one.complete:
            write_atomically(one.job.output, (one.work / "result.ipynb").read_bytes())
            one.job.failed.unlink(missing_ok=True)
            return None
        error = _read(one.work / "error.json") or _sudden_death(one)
        lines = [f"{one.job.name}: {error['name']}: {error['message']}"]
        if cell := one.progress.get("cell"):
            lines[0] += f" (cell {cell} of {one.progress.get('cells')})"
        lines += [f"    {line}" for line in error.get("traceback", [])[-12:]]
        if (one.work / "output.ipynb").is_file():
            write_atomically(one.job.failed, (one.work / "output.ipynb").read_bytes())
            lines.append(f"  as far as it came: {one.job.failed}")
        return "\n".join(lines)
    except OSError as error:
        saved = False
        return f"{one.job.name}: could not be saved: {error}; what there is lies in {one.work}"
    finally:
        _clear(one, files=saved)


def _clear(one: Attempt, *, files: bool = True) -> None:
    assert one.process.stdin is not None
    one.process.stdin.close()
    if files:
        shutil.rmtree(one.work, ignore_errors=True)


def _check_writable(place: Path) -> None:
    """Raise ``ValueError`` if a folder takes no files: better before a run of hours than after it."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise ValueError(f"{place} takes no executed copies ({error}): name another folder with --output") from None


def _sudden_death(one: Attempt) -> dict[str, Any]:
    log = (one.work / "log.txt").read_text("utf-8", "replace").splitlines()
    why = "killed, often because memory ran out: try --jobs 1 or a smaller preset" if one.process.returncode < 0 else ""
    return {"name": "ProcessEnded", "message": why or f"exit code {one.process.returncode}", "traceback": log}


def _stop(attempts: Sequence[Attempt], caught: list[int]) -> None:
    """Interrupt what runs, so that it can save its state; kill what goes on regardless, or at a second signal."""
    for one in attempts:
        _signal_groups(one, signal.SIGINT if "cell" in one.progress else signal.SIGKILL)
    patience = time.monotonic() + GRACE_SECONDS
    while any(one.process.poll() is None for one in attempts) and time.monotonic() < patience and len(caught) < 2:
        time.sleep(TICK_SECONDS)
    for one in attempts:
        _signal_groups(one, signal.SIGKILL)
        one.process.wait()


def _signal_groups(one: Attempt, number: signal.Signals) -> None:
    """Send a signal to a notebook's kernel and all it started; one that kills reaches papermill's process too."""
    with suppress(ProcessLookupError, KeyError):
        os.killpg(one.progress["kernel"], number)
    if number == signal.SIGKILL and one.process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, number)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect interrupts and terminations instead of acting on them in the middle of something."""
    caught: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda signum, frame: caught.append(signum))
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):
        return {}
