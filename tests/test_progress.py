"""The progress line: rewritten in a terminal, sparse in a log, silent if asked."""

from __future__ import annotations

import io

from cflib.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_line_is_rewritten_and_the_last_word_stays():
    out = Terminal()
    with Progress("fedavg", 4, stream=out) as line:
        for done in range(1, 5):
            line.update(done, accuracy="0.5")
    assert out.getvalue().count("\r") >= 1
    assert "fedavg  round 4/4  accuracy 0.5" in out.getvalue().split("\r")[-1]
    assert out.getvalue().endswith("\n")


def test_a_log_gets_the_first_and_the_last_line_of_a_quick_run():
    out = io.StringIO()
    with Progress("fedavg", 50, stream=out) as line:
        for done in range(1, 51):
            line.update(done)
    assert [text.split("  ")[1] for text in out.getvalue().splitlines()] == ["round 1/50", "round 50/50"]


def test_rounds_of_earlier_runs_count():
    out = io.StringIO()
    with Progress("second run", 20, stream=out) as line:
        line.skip(10)
        line.update(1)
    assert "round 11/20" in out.getvalue()


def test_rounds_that_turn_out_to_be_needed_first_are_added_to_the_total():
    out = io.StringIO()
    with Progress("child", 2, stream=out) as line:
        with line.more(8):
            line.update(8)
        line.update(1)
    assert line.line.startswith("child  round 9/10")
    assert "round 8/10" in out.getvalue()


def test_nothing_is_printed_if_progress_is_off():
    out = io.StringIO()
    with Progress("fedavg", 4, stream=out, enabled=False) as line:
        line.update(1)
    assert out.getvalue() == ""


def test_the_time_left_is_reckoned_from_the_rounds_computed(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("cflib.progress.time.monotonic", lambda: now[0])
    line = Progress("", 40, stream=io.StringIO())
    line.skip(10)  # read
    now[0] = 6.0
    line.update(6)
    assert line.line.endswith("round 16/40  6 s, about 24 s left")
    line.skip(10)  # computed
    line.skip(10)  # read
    now[0] = 10.0
    line.update(1)
    assert line.line.endswith("round 31/40  10 s, about 8 s left")


def test_rounds_that_a_run_begins_with_do_not_make_the_others_look_fast(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("cflib.progress.time.monotonic", lambda: now[0])
    line = Progress("", 40, stream=io.StringIO())
    line.resume(10)  # from a checkpoint
    now[0] = 6.0
    line.update(12)
    assert line.line.endswith("round 12/40  6 s, about 84 s left")
    line.skip(20)
    line.resume(19)
    now[0] = 22.0
    line.update(20)
    assert line.line.endswith("round 40/40  22 s, about 0 s left")
    assert line.found == 29


def test_whoever_executes_a_notebook_can_read_the_line(monkeypatch, tmp_path):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *args, **options: shown.append(args))
    monkeypatch.setenv("CFLIB_PROGRESS", str(tmp_path / "says.txt"))
    line = Progress("run 1 of 2: fedavg", 4, stream=io.StringIO())
    line.notebook = True
    line.update(1)
    assert (tmp_path / "says.txt").read_text().startswith("run 1 of 2: fedavg  round 1/4")
    assert len(shown) == 1
