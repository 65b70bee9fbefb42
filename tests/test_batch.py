"""The batch runner: refusals, real runs, failures, resumption, time limits and clean stops."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from cflib import batch, board, execution, tidying
from cflib.__main__ import main
from cflib.batch import run
from cflib.board import Board, Row, clock
from cflib.execution import environment, fingerprint, stamp
from cflib.jobs import plan
from tests.test_notebooks import DECLARED, edit, make

PROJECT = Path(__file__).parent.parent
SHOW = """import os, sys, matplotlib
print(os.getcwd(), sys.executable, sys.prefix, os.path.expanduser("~"), "/" + "usr/share", sep="\\n")
print(rounds, preset, matplotlib.get_backend(), "MARK" in globals())
object()"""


def cli(*arguments, place, **options):
    """Start ``python -m cflib run`` on a folder of notebooks, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "cflib", "run", *arguments],
        cwd=PROJECT,
        env={**os.environ, "CFLIB_NOTEBOOKS": str(place), **options},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def outputs(path):
    return json.dumps([cell.get("outputs", []) for cell in json.loads(path.read_text())["cells"]])


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def alive(pid):
    """Tell whether a process runs; one that is dead but not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# Plans and refusals


@pytest.fixture
def place(tmp_path):
    make(tmp_path, "01_a", declared=f"names: list[str] = ['x']  # names\n{DECLARED}", smoke="rounds: 1")
    make(tmp_path, "02_b", smoke="rounds: 2")
    (tmp_path / "params" / "02_b" / "long.yml").write_text("rounds: 9")
    return tmp_path


def test_a_plan_has_one_job_a_notebook_with_the_preset_s_parameters(place):
    jobs, skipped = plan(place, preset="smoke")
    assert [job.output for job in jobs] == [place / "executed" / f"{name}.smoke.ipynb" for name in ("01_a", "02_b")]
    assert [dict(job.parameters) for job in jobs] == [
        {"rounds": 1, "preset": "smoke"},
        {"rounds": 2, "preset": "smoke"},
    ]
    assert skipped == []


def test_a_notebook_without_the_preset_is_skipped_with_a_line_unless_it_was_named(place):
    jobs, skipped = plan(place, preset="long")
    assert [job.name for job in jobs] == ["02_b.long"]
    assert skipped == ["01_a: no such preset (long)"]
    with pytest.raises(ValueError, match="no preset 'long': 01_a has smoke, quick"):
        plan(place, ["01"], preset="long")


def test_set_parameters_go_to_the_sweeps_and_not_to_the_executed_copies(place):
    (job,), _ = plan(place, ["01"], settings=["rounds=7", "names=[p,q]"])
    assert job.output == place / "sweeps" / "01_a.quick.rounds=7.names=p,q.ipynb"
    assert job.parameters == {"preset": "quick", "rounds": 7, "names": ["p", "q"]}
    assert job.failed == place / "sweeps" / "failed" / job.output.name
    assert job.verdicts == place / "sweeps" / "results" / "01_a.quick.rounds=7.names=p,q"
    assert plan(place, ["01"])[0][0].verdicts is None


def test_a_copy_made_for_some_parts_is_current_but_never_fresh(place):
    make(place, "03_c", declared=f"parts: list[str] = ['all']  # parts\n{DECLARED}")
    (part,), _ = plan(place, ["03"], settings=["parts=[AVG/seed 0]"])
    made = {"cflib": {"fingerprint": fingerprint(part.source, part.parameters)}}
    made["papermill"] = {"duration": 1.0, "parameters": dict(part.parameters)}
    part.output.parent.mkdir()
    part.output.write_text(json.dumps({"metadata": made}))
    (whole,), _ = plan(place, ["03"])
    assert (part.fresh, part.current, whole.fresh, whole.current) == (False, True, False, True)
    whole.source.write_text(whole.source.read_text().replace("# parts", "# what may be computed"))
    assert not whole.current


def test_verdicts_of_a_sweep_go_to_their_own_folder_whatever_the_environment_says(place, monkeypatch):
    seen = []
    monkeypatch.setenv("CFLIB_RESULTS", str(place / "mine"))
    monkeypatch.setattr("cflib.batch.subprocess.Popen", lambda *_, env, **__: seen.append(env["CFLIB_RESULTS"]))
    for job in plan(place, ["01"], sweeps=["rounds=1,2"])[0]:
        batch._start(job)
    assert seen == [str(place / "sweeps" / "results" / f"01_a.quick.rounds={n}") for n in (1, 2)]


def test_parts_say_what_may_be_computed_and_leave_the_copy_the_preset_s_own(place):
    make(place, "03_c", declared=f"parts: list[str] = ['all']  # parts\n{DECLARED}")
    (job,), _ = plan(place, ["03"], settings=["parts=[AVG/seed 0]"])
    assert job.output == place / "executed" / "03_c.quick.ipynb"
    assert job.parameters == {"preset": "quick", "parts": ["AVG/seed 0"]}
    assert job.verdicts is None
    (job,), _ = plan(place, ["03"], settings=["parts=[AVG/seed 0]", "rounds=7"])
    assert job.output == place / "sweeps" / "03_c.quick.rounds=7.ipynb"


def test_a_sweep_runs_every_combination(place):
    jobs, _ = plan(place, ["02"], sweeps=["rounds=1,2"], output=place / "elsewhere")
    assert [job.name for job in jobs] == ["02_b.quick.rounds=1", "02_b.quick.rounds=2"]
    assert {job.output.parent for job in jobs} == {place / "elsewhere"}
    jobs, _ = plan(place, ["01"], sweeps=["rounds=1,2", "names=[a],[b,c],[]"])
    assert len({job.name for job in jobs}) == 6
    assert [job.parameters["names"] for job in jobs[:3]] == [["a"], ["b", "c"], []]


def test_a_long_value_is_shortened_in_the_name_and_stays_distinct(place):
    jobs, _ = plan(place, ["01"], sweeps=[f"names=[{'x' * 60},a],[{'x' * 60},b]"])
    assert len({job.name for job in jobs}) == 2
    assert all(len(job.name) < 70 for job in jobs)


@pytest.mark.parametrize(
    ("names", "options", "complaint"),
    [
        (["09"], {}, "no notebook '09'.*01_a, 02_b"),
        ([], {"preset": "huge"}, "no preset 'huge': 01_a has smoke, quick; 02_b has smoke, quick, long"),
        (
            [],
            {"settings": ["roundz=1"]},
            r"01_a has no parameter 'roundz'; it has:\n  names: list.*\n  rounds: int = 3",
        ),
        ([], {"settings": ["names=x"]}, "02_b has no parameter 'names'"),
        ([], {"settings": ["rounds=0.5"]}, "'0.5' is not of type int: the notebook declares rounds: int = 3"),
        ([], {"sweeps": ["rounds=1,x"]}, "'x' is not of type int"),
        ([], {"settings": ["rounds"]}, "write name=value"),
        ([], {"settings": ["preset=long"]}, "set with --preset"),
        ([], {"settings": ["rounds=1"], "sweeps": ["rounds=2,3"]}, "rounds is set twice"),
        (["02"], {"sweeps": ["rounds=2,2"]}, "given twice.*02_b.quick.rounds=2"),
    ],
)
def test_what_does_not_exist_or_fit_is_refused_with_what_does(place, names, options, complaint):
    with pytest.raises(ValueError, match=f"(?s){complaint}"):
        plan(place, names, **options)


def test_a_notebook_with_a_fault_is_refused(place):
    (place / "params" / "02_b" / "long.yml").write_text("rounds: many")
    with pytest.raises(ValueError, match=r"02_b.ipynb: params/02_b/long.yml: rounds: 'many' is not of type int"):
        plan(place)
    assert [job.name for job in plan(place, ["01"])[0]] == ["01_a.quick"]


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no notebook in"):
        plan(tmp_path)


def test_the_command_refuses_before_anything_starts(place, monkeypatch, capsys):
    monkeypatch.setenv("CFLIB_NOTEBOOKS", str(place))
    monkeypatch.setattr(batch, "run", lambda *_, **__: pytest.fail("started"))
    for wrong in (["--jobs", "0"], ["--timeout", "-1"], ["03"], ["-p", "rounds=x"], ["--preset", "huge"]):
        assert main(["run", *wrong]) == 2
        assert capsys.readouterr().err
    monkeypatch.setenv("CFLIB_NOTEBOOKS", str(place / "absent"))
    assert main(["run"]) == 2
    with pytest.raises(ValueError, match="at least one"):
        run([], at_once=0, board=Board(io.StringIO()))


# The loop, with a stand-in for papermill: the last cell of a notebook, executed in a plain Python process

STAND_IN = """
import json, os, subprocess, sys, time
from pathlib import Path
work = Path(sys.argv[1])
source = json.loads((work / "source.ipynb").read_text())
request = json.loads((work / "request.json").read_text())
cell = "".join(source["cells"][-1]["source"])
(work / "output.ipynb").write_text("partial")
if "early" not in cell:
    (work / "progress.json").write_text(json.dumps({"cell": 2, "cells": 2, "kernel": os.getpid()}))
exec(cell)
source["metadata"] = {"cflib": {"fingerprint": request["fingerprint"]}, "papermill": {"duration": 75}}
(work / "result.ipynb").write_text(json.dumps(source))
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(batch, "WORKER", (sys.executable, str(script)))
    monkeypatch.setattr(batch, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(batch, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(batch.tempfile, "tempdir", str(tmp_path))
    return tmp_path


class Terminal(io.StringIO):
    def isatty(self):
        return True


def go(place, *, stream=None, preset="quick", **options):
    """Run all notebooks of a folder and return the exit code and what was shown."""
    stream = stream or io.StringIO()
    jobs, _ = plan(place, preset=preset)
    code = run(jobs, board=Board(stream, [job.name for job in jobs]), **options)
    assert not list(place.glob("cflib-run-*")), "a working folder was left behind"
    return code, stream.getvalue()


def executed(place):
    return sorted(path.name for path in (place / "executed").glob("*"))


def test_a_failing_notebook_does_not_stop_the_others_and_its_partial_copy_is_kept(stand_in):
    make(stand_in, "01_bad", "print('last words')\nsys.exit(3)")
    make(stand_in, "02_good", "pass")
    code, shown = go(stand_in)
    assert code == 1
    assert executed(stand_in) == ["02_good.quick.ipynb"]
    assert (stand_in / "failed" / "01_bad.quick.ipynb").read_text() == "partial"
    assert "1 done, 1 failed" in shown
    assert "01_bad.quick: ProcessEnded: exit code 3 (cell 2 of 2)\n    last words" in shown
    assert f"as far as it came: {stand_in / 'failed' / '01_bad.quick.ipynb'}" in shown


def test_a_success_clears_the_partial_copy_of_an_earlier_failure(stand_in):
    path = make(stand_in, "01_a", "sys.exit(3)")
    assert go(stand_in)[0] == 1
    edit(path, lambda notebook: notebook["cells"][-1].update(source="pass"))
    assert go(stand_in)[0] == 0
    assert not list((stand_in / "failed").glob("*"))


def test_what_is_up_to_date_is_not_run_again_unless_forced(stand_in):
    path = make(stand_in, "01_a", "Path('count').open('a').write('x')")
    count = stand_in / "count"
    assert "01_a.quick  started\n" in go(stand_in)[1]
    code, shown = go(stand_in)
    assert (code, count.read_text()) == (0, "x")
    assert shown == "01_a.quick  up to date (--force runs it again)\n"
    assert "01_a.quick  started, about 1:15\n" in go(stand_in, force=True)[1]
    assert count.read_text() == "xx"
    edit(path, lambda notebook: notebook["cells"][0].update(source="# Another title"))
    go(stand_in)
    assert count.read_text() == "xxx"
    (stand_in / "executed" / "01_a.quick.ipynb").write_text("half a file")
    go(stand_in)
    assert count.read_text() == "xxxx"


def test_a_copy_far_from_its_source_does_not_tell_where_it_lies(stand_in, tmp_path_factory):
    make(stand_in, "01_a", "Path('told').write_text(request['output'])")
    for folder, told in ((tmp_path_factory.mktemp("far"), ""), (stand_in / "near", "near/")):
        run(plan(stand_in, output=folder)[0], board=Board(io.StringIO()))
        assert (stand_in / "told").read_text() == f"{told}01_a.quick.ipynb"


def test_a_notebook_edited_while_it_runs_is_out_of_date_afterwards(stand_in):
    make(stand_in, "01_a", "p = Path('01_a.ipynb'); p.write_text(p.read_text().replace('# Try', '# Other'))")
    assert go(stand_in)[0] == 0
    (job,), _ = plan(stand_in)
    assert not job.fresh
    assert job.seconds == 75


def test_a_notebook_over_its_time_limit_is_stopped_with_all_that_it_started(stand_in):
    child = "Path('pid').write_text(str(subprocess.Popen(['sleep', '60']).pid))"
    make(stand_in, "01_slow", f"{child}\ntime.sleep(60)")
    make(stand_in, "02_good", "pass")
    code, shown = go(stand_in, minutes=0.02)
    assert code == 1
    assert "01_slow.quick: TimeLimit: not done after 0.02 minutes; --timeout MINUTES gives it more" in shown
    assert executed(stand_in) == ["02_good.quick.ipynb"]
    assert (stand_in / "failed" / "01_slow.quick.ipynb").is_file()
    wait_for(lambda: not alive(int((stand_in / "pid").read_text())))


def test_a_notebook_that_ignores_the_interrupt_is_killed(stand_in):
    make(stand_in, "01_deaf", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)")
    began = time.monotonic()
    assert go(stand_in, minutes=0.01)[0] == 1
    assert time.monotonic() - began < 10


def test_a_process_that_never_gets_as_far_as_a_kernel_is_killed(stand_in):
    make(stand_in, "01_stuck", "early = 1\ntime.sleep(60)")
    began = time.monotonic()
    assert go(stand_in, minutes=0.01)[0] == 1
    assert time.monotonic() - began < 10


def test_a_notebook_that_ends_in_the_last_moment_counts(stand_in):
    make(stand_in, "01_late", "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    pass")
    assert go(stand_in, minutes=0.04)[0] == 0
    assert executed(stand_in) == ["01_late.quick.ipynb"]


def test_each_preset_has_its_limit_and_zero_means_none(stand_in, monkeypatch):
    make(stand_in, "01_a", "time.sleep(1)")
    monkeypatch.setattr(batch, "MINUTES", {"smoke": 0.005, "quick": None})
    assert "TimeLimit: not done after 0.005 minutes" in go(stand_in, preset="smoke")[1]
    assert go(stand_in, preset="smoke", minutes=0)[0] == 0
    assert go(stand_in, preset="quick")[0] == 0


def test_a_killed_process_is_reported_with_the_likely_reason(stand_in):
    make(stand_in, "01_a", "early = 1; (work / 'output.ipynb').unlink(); os.kill(os.getpid(), 9)")
    code, shown = go(stand_in)
    assert code == 1
    assert shown.endswith(
        "01_a.quick: ProcessEnded: killed, often because memory ran out: try --jobs 1 or a smaller preset\n"
    )
    assert not (stand_in / "failed").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_cleanly_and_the_same_command_goes_on(stand_in, number, code):
    make(stand_in, "01_a", "Path('count').open('a').write('x')")
    make(stand_in, "02_b", "Path('pid').write_text(str(os.getpid()))\nPath('go').exists() or time.sleep(60)")
    make(stand_in, "03_c", "pass")
    before = signal.getsignal(number)

    def send():
        wait_for((stand_in / "pid").exists)
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
    stopped, shown = go(stand_in)
    assert stopped == code
    assert shown.endswith("stopped: the same command goes on from here\n")
    assert "1 done in" in shown
    assert executed(stand_in) == ["01_a.quick.ipynb"]
    assert not alive(int((stand_in / "pid").read_text()))
    assert signal.getsignal(number) is before
    (stand_in / "go").touch()
    assert go(stand_in)[0] == 0
    assert executed(stand_in) == ["01_a.quick.ipynb", "02_b.quick.ipynb", "03_c.quick.ipynb"]
    assert (stand_in / "count").read_text() == "x"


def test_what_completes_while_it_is_stopped_is_kept_and_failures_are_still_told(stand_in):
    make(stand_in, "01_bad", "sys.exit(3)")
    make(stand_in, "02_b", "try:\n    Path('up').touch()\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    pass")

    def send():
        wait_for((stand_in / "up").exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send).start()
    code, shown = go(stand_in)
    assert code == 130
    assert executed(stand_in) == ["02_b.quick.ipynb"]
    assert "01_bad.quick: ProcessEnded: exit code 3" in shown


def test_a_second_signal_does_not_wait(stand_in, monkeypatch):
    monkeypatch.setattr(batch, "GRACE_SECONDS", 60)
    make(
        stand_in,
        "01_deaf",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nPath('up').touch()\ntime.sleep(60)",
    )

    def send():
        wait_for((stand_in / "up").exists)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send).start()
    began = time.monotonic()
    assert go(stand_in)[0] == 130
    assert time.monotonic() - began < 20


def test_an_error_in_the_runner_itself_leaves_no_process_behind(stand_in):
    make(stand_in, "01_a", "Path('pid').write_text(str(os.getpid()))\ntime.sleep(60)")

    class Broken(Board):
        def show(self):
            if (stand_in / "pid").exists():
                raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(plan(stand_in)[0], board=Broken(io.StringIO()))
    assert not alive(int((stand_in / "pid").read_text()))


def test_a_batch_can_run_outside_the_main_thread(stand_in):
    make(stand_in, "01_a", "pass")
    codes = []
    thread = threading.Thread(target=lambda: codes.append(go(stand_in)[0]))
    thread.start()
    thread.join()
    assert codes == [0]


def test_as_many_run_at_once_as_asked_and_each_starts_after_the_kernel_before_it_is_up(stand_in):
    early = "early = time.time(); time.sleep(0.3)\n(work / 'progress.json').write_text('{\"cell\": 1}')\n"
    for name in ("01_a", "02_b", "03_c"):
        make(
            stand_in,
            name,
            f"{early}up = time.time(); time.sleep(1)\nPath('{name}').write_text(f'{{early}} {{up}} {{time.time()}}')",
        )
    assert go(stand_in, at_once=2)[0] == 0
    first, second, third = (
        [float(t) for t in (stand_in / name).read_text().split()] for name in ("01_a", "02_b", "03_c")
    )
    assert first[1] <= second[0] < first[2]
    assert third[0] >= min(first[2], second[2])


# What is shown


def test_a_terminal_shows_a_table_redrawn_in_place(stand_in, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    make(stand_in, "01_a", "time.sleep(0.3)")
    make(stand_in, "02_b", "sys.exit(1)")
    code, shown = go(stand_in, stream=Terminal())
    assert code == 1
    assert shown.startswith("notebook    state        cell  elapsed  estimate\n")
    assert re.search(r"01_a\.quick  running       2/2     0:\d\d  -\n1 waiting\n", shown)
    assert re.search(r"\x1b\[2F\x1b\[J01_a\.quick  done          2/2     0:\d\d\n", shown)
    assert "02_b.quick  failed" in shown
    assert "1 done, 1 failed in 0:0" in shown.rsplit("\x1b[J", 1)[1]


def test_rows_are_cut_at_the_terminal_s_edge_and_estimates_come_from_the_last_run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    table = Board(stream, ["01_a"])
    table.waiting = 1
    table.started("01_a", 75.0)
    table.cell("01_a", None, None)
    table.show()
    assert stream.getvalue() == "01_a  running         -     0:00  about 1:15 left"[:29] + "\n"
    monkeypatch.setenv("COLUMNS", "80")
    table.show()
    assert "about 1:15 left" in stream.getvalue()
    shown = len(stream.getvalue())
    table.show()
    assert len(stream.getvalue()) == shown, "nothing changed, nothing is redrawn"


def test_an_estimate_that_has_run_out_is_not_shown(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("cflib.board.time.monotonic", lambda: now[0])
    row = Row("01_a", 75.0, began=100.0, said=100.0)
    assert "about 1:15 left" in row.text("running", 8)
    now[0] = 176.0
    assert "left" not in row.text("running", 8)


def test_a_log_hears_a_sign_of_life_once_a_minute(monkeypatch):
    began = time.monotonic()
    now = [began]
    monkeypatch.setattr(board.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    table = Board(stream, ["01_a"])
    table.started("01_a", None)
    for _ in range(150):
        now[0] += 1
        table.cell("01_a", 4, 9, "run 2 of 3" if now[0] - began > 90 else "")
        table.show()
    assert stream.getvalue().splitlines() == [
        "01_a  started",
        "01_a  running       4/9     1:00  -",
        "01_a  running       4/9     2:00  -  run 2 of 3",
    ]


def test_clock():
    assert [clock(seconds) for seconds in (0, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]


def test_the_list_shows_presets_their_state_and_the_parameters_of_named_notebooks(place, monkeypatch, capsys):
    monkeypatch.setenv("CFLIB_NOTEBOOKS", str(place))
    (job,), _ = plan(place, ["02"], preset="smoke")
    made = {"cflib": {"fingerprint": fingerprint(job.source, job.parameters)}, "papermill": {"duration": 61.2}}
    job.output.parent.mkdir()
    job.output.write_text(json.dumps({"metadata": made}))
    assert main(["run", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "02_b\n  --preset smoke   up to date, copy made in 1:01\n  --preset quick   not run yet\n" in shown
    assert "rounds" not in shown
    job.output.write_text(json.dumps({"metadata": {**made, "cflib": {"fingerprint": "old"}}}))
    assert main(["run", "--list", "02"]) == 0
    shown = capsys.readouterr().out
    assert "--preset smoke   out of date" in shown
    assert "  rounds: int = 3  # rounds of training\n" in shown


# What an executed copy depends on, and what it says


def test_the_fingerprint_follows_cells_parameters_and_library_but_not_form(tmp_path, monkeypatch):
    path = make(tmp_path, "01_a", "1")
    first = fingerprint(path, {"rounds": 1, "preset": "quick"})
    assert fingerprint(path, {"preset": "quick", "rounds": 1}) == first
    assert fingerprint(path, {"rounds": 2, "preset": "quick"}) != first
    edit(path, lambda notebook: notebook["metadata"].update(title="x"))
    assert fingerprint(path, {"rounds": 1, "preset": "quick"}) == first
    edit(path, lambda notebook: notebook["cells"][-1].update(source=["2"]))
    second = fingerprint(path, {"rounds": 1, "preset": "quick"})
    assert second != first
    monkeypatch.setattr(execution, "PROJECT", tmp_path)
    (tmp_path / "data" / "reference").mkdir(parents=True)
    (tmp_path / "data" / "reference" / "claims.csv").write_text("id")
    assert fingerprint(path, {"rounds": 1, "preset": "quick"}) != second


def test_a_copy_is_out_of_date_when_a_module_changes_that_its_cells_use_through_whatever_others(tmp_path, monkeypatch):
    library = tmp_path / "cflib"
    library.mkdir()
    monkeypatch.setattr(execution, "__file__", str(library / "execution.py"))
    modules = {
        "__init__": "",
        "runs": "from cflib import (\n    server,\n    keys,\n)",
        "server": "import cflib.arrays",
    }
    modules |= {
        "keys": "",
        "arrays": "from cflib.keys import key",
        "batch": "from cflib import notebooks",
        "notebooks": "",
    }
    for name, text in modules.items():
        (library / f"{name}.py").write_text(text)
    narrow = make(tmp_path, "01_a", "from cflib import runs", "%matplotlib inline")
    attribute = make(tmp_path, "02_b", "import cflib\ncflib.server.serve()")
    renamed = make(tmp_path, "03_c", "import cflib as c\nc.batch")

    def changed(name):
        before = [fingerprint(path, {}) for path in (narrow, attribute, renamed)]
        (library / f"{name}.py").write_text(modules[name] + "\n# changed")
        after = [fingerprint(path, {}) for path in (narrow, attribute, renamed)]
        return [one != other for one, other in zip(before, after, strict=True)]

    assert changed("runs") == [True, False, True]
    assert changed("arrays") == [True, True, True]
    assert changed("__init__") == [True, True, True]
    assert changed("notebooks") == [False, False, True]


@pytest.mark.parametrize("text", [None, "", "[]", '{"metadata": {}}', '{"metadata": {"cflib": {}, "papermill": 3}}'])
def test_an_unreadable_copy_has_no_stamp(tmp_path, text):
    if text is not None:
        (tmp_path / "x").write_text(text)
    assert stamp(tmp_path / "x") == {}


def test_the_environment_holds_nothing_that_could_slip_in_another_kernel(tmp_path, monkeypatch):
    for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_DIR", "PYTHONSTARTUP", "MPLBACKEND", "PYTHONPATH", "IPYTHONDIR"):
        monkeypatch.setenv(name, "hijack")
    monkeypatch.setenv("CFLIB_RECORDS", "kept")
    clean = environment(tmp_path)
    assert "hijack" not in clean.values()
    assert (clean["CFLIB_RECORDS"], clean["PYTHONPATH"]) == ("kept", str(PROJECT))
    monkeypatch.setattr(execution, "PROJECT", tmp_path)
    assert "PYTHONPATH" not in environment(tmp_path)


def test_outputs_are_joined_and_say_nothing_about_the_machine(monkeypatch, tmp_path):
    import nbformat

    monkeypatch.chdir(tmp_path)
    home = str(Path.home())
    text = f"{PROJECT}/cflib/a.py {sys.prefix}/bin {tmp_path} {home}/x /tmp/ipykernel_12/34.py:3 \x1b[32m{PROJECT}/b"
    cell = nbformat.v4.new_code_cell("x", id="a", metadata={"papermill": {"duration": 1}, "tags": [], "keep": False})
    stream = {"output_type": "stream", "name": "stdout"}
    picture = f"{PROJECT}/not/a/text"
    cell.outputs = [
        {**stream, "text": "10 %\r50 %\r100 %\r\nne"},
        {**stream, "text": "xt\n"},
        {**stream, "name": "stderr", "text": text},
        {
            "output_type": "display_data",
            "metadata": {"width": 3},
            "data": {"image/png": picture, "text/html": [f"<a href='{PROJECT}/x'>", "<b at 0x7f00aa11bb22>"]},
        },
    ]
    cell.outputs = [nbformat.from_dict(output) for output in cell.outputs]
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"language_info": {"name": "python", "version": "3"}})
    tidying.tidy(notebook)
    assert dict(cell.metadata) == {"keep": False}
    assert notebook.metadata.language_info == {"name": "python"}
    first, second, third = cell.outputs
    assert first.text == "100 %\r\nnext\n"
    assert second.text == "cflib/a.py .../bin . ~/x cell:3 \x1b[32mb"
    assert third.data == {"image/png": picture, "text/html": ["<a href='x'>", "<b at 0x...>"]}


def test_pictures_get_lighter_and_look_the_same(tmp_path):
    import nbformat
    from PIL import Image

    from cflib import plots

    figure, ax = plots.panels()
    plots.curve(ax, range(4), np.random.default_rng(0).normal(size=(3, 4)), label="a")
    figure.savefig(tmp_path / "drawn.png", dpi=100)
    Image.new("RGBA", (4, 4), (255, 0, 0, 90)).save(tmp_path / "glass.png")
    drawn, glass = (base64.b64encode((tmp_path / name).read_bytes()).decode() for name in ("drawn.png", "glass.png"))
    outputs = [
        nbformat.v4.new_output("display_data", {"image/png": picture, "text/plain": "kept"})
        for picture in (drawn, glass, "bm90IGEgcGljdHVyZQ==")
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=outputs)])
    tidying.tidy(notebook)
    light, same, unreadable = (output.data["image/png"] for output in notebook.cells[0].outputs)
    assert (same, unreadable) == (glass, "bm90IGEgcGljdHVyZQ==")
    assert len(light) < 0.6 * len(drawn)
    before, after = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB"), dtype=int) for one in (drawn, light)
    )
    assert before.shape == after.shape
    assert np.abs(before - after).max() < 25
    tidying.tidy(notebook)
    assert notebook.cells[0].outputs[0].data["image/png"] == light


def test_a_copy_that_cannot_be_saved_is_kept_and_the_batch_goes_on(stand_in, monkeypatch):
    make(stand_in, "01_a", "pass")
    make(stand_in, "02_b", "pass")
    write = batch.write_atomically

    def full(path, content):
        if path.name.startswith("01_a"):
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(batch, "write_atomically", full)
    jobs, shown = plan(stand_in)[0], io.StringIO()
    assert run(jobs, board=Board(shown)) == 1
    assert executed(stand_in) == ["02_b.quick.ipynb"]
    (kept,) = stand_in.glob("cflib-run-*")
    assert (kept / "result.ipynb").is_file()
    assert (
        "01_a.quick: could not be saved: [Errno 28] No space left on device; what there is lies in" in shown.getvalue()
    )
    assert str(kept) in shown.getvalue()


def test_a_folder_that_takes_no_copies_is_refused_before_anything_runs(stand_in):
    make(stand_in, "01_a", "Path('ran').touch()")
    (stand_in / "blocked").write_text("a file, no folder")
    with pytest.raises(ValueError, match=r"blocked takes no executed copies .*: name another folder with --output"):
        run(plan(stand_in, output=stand_in / "blocked")[0], board=Board(io.StringIO()))
    assert not (stand_in / "ran").exists()


def test_a_name_too_long_for_a_file_is_cut_and_stays_its_own(tmp_path):
    from cflib.jobs import _short

    long = "01_notebook.quick." + ".".join(f"parameter_{i}=äöü" for i in range(30))
    short = _short(long, 200, kept=180)
    assert len(short.encode()) <= 200
    assert short != _short(long + "1", 200, kept=180)
    assert _short("01_notebook.quick", 200, kept=180) == "01_notebook.quick"


def test_the_last_act_of_an_orphan_is_to_kill_its_kernel_and_clear_its_folder(tmp_path, monkeypatch):
    done = []
    ends, starts = os.pipe()
    monkeypatch.setattr(os, "read", lambda fd, n, read=os.read: read(ends, n))
    monkeypatch.setattr(os, "killpg", lambda *what: done.append(what))
    monkeypatch.setattr(os, "_exit", done.append)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "progress.json").write_text('{"kernel": 7}')
    os.write(starts, b"x")
    os.close(starts)
    execution._follow_runner(tmp_path / "work")
    assert done == [(7, signal.SIGKILL), 1]
    assert not (tmp_path / "work").exists()
    execution._follow_runner(tmp_path / "work")
    assert done[2:] == [1]
    os.close(ends)


def test_a_dead_kernel_is_explained():
    from nbclient.exceptions import DeadKernelError

    said = execution._explain(DeadKernelError("Kernel died"))
    assert said["name"] == "DeadKernelError"
    assert "memory ran out" in said["message"]
    assert execution._explain(RuntimeError("why"))["message"] == "why"


# Real runs


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Two notebooks, one that fails and one whose metadata name another kernel, run in a hostile environment."""
    place = tmp_path_factory.mktemp("note {books}")
    edit(
        make(place, "01_good", SHOW, smoke="rounds: 1"),
        lambda notebook: notebook["metadata"]["kernelspec"].update(name="nonsense"),
    )
    make(place, "02_bad", "print('so far')", "1 / 0", "print('never')")
    fake = place / "jupyter" / "kernels" / "python3"
    fake.mkdir(parents=True)
    (fake / "kernel.json").write_text('{"argv": ["false"], "display_name": "", "language": "python"}')
    (place / "startup.py").write_text("MARK = 1")
    hostile = {
        "JUPYTER_PATH": str(place / "jupyter"),
        "PYTHONSTARTUP": str(place / "startup.py"),
        "MPLBACKEND": "Agg",
        "PYTHONPATH": str(PROJECT),
    }
    process = cli("--preset", "smoke", "--jobs", "2", place=place, **hostile)
    shown, _ = process.communicate(timeout=120)
    return place, process.returncode, shown


def test_a_real_failure_ends_with_error_traceback_and_code_1_while_the_others_finish(real):
    place, code, shown = real
    assert code == 1
    assert executed(place) == ["01_good.smoke.ipynb"]
    assert "02_bad.smoke: ZeroDivisionError: division by zero (cell 5 of 6)" in shown
    assert "----> 1 1 / 0" in shown
    partial = outputs(place / "failed" / "02_bad.smoke.ipynb")
    assert "so far" in partial
    assert "never" not in partial


def test_cells_see_this_interpreter_the_notebook_s_folder_and_the_preset(real):
    printed = outputs(real[0] / "executed" / "01_good.smoke.ipynb")
    assert "1 smoke" in printed
    assert "inline" in printed
    assert "inline False" in printed, "the start-up file must not have run"
    assert ".\\n" in printed
    assert "/bin/python" in printed


def test_an_executed_copy_is_valid_stamped_and_free_of_this_machine_s_paths(real):
    import nbformat

    place = real[0]
    path = place / "executed" / "01_good.smoke.ipynb"
    text = path.read_text()
    assert not [root for root in (str(PROJECT), str(place), sys.prefix, f"{Path.home()}/") if root in text]
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.papermill.keys() == {"duration", "input_path", "output_path", "parameters"}
    assert notebook.metadata.papermill.output_path == "executed/01_good.smoke.ipynb"
    assert notebook.metadata.papermill.parameters == {"rounds": 1, "preset": "smoke"}
    assert notebook.metadata.cflib.provenance.versions.numpy
    assert notebook.metadata.kernelspec.name == "python3"
    assert not [cell for cell in notebook.cells if "papermill" in cell.metadata or "execution" in cell.metadata]


def test_a_second_execution_elsewhere_gives_the_same_copy_but_for_the_time_it_took(real, tmp_path, monkeypatch):
    place = real[0]
    (job,), _ = plan(place, ["01"], preset="smoke")
    first = json.loads(job.output.read_text())
    request = {
        "source": job.source.name,
        "output": first["metadata"]["papermill"]["output_path"],
        "parameters": dict(job.parameters),
        "fingerprint": "x",
    }
    (tmp_path / "source.ipynb").write_text(job.source.read_text())
    (tmp_path / "request.json").write_text(json.dumps(request))
    monkeypatch.chdir(place)
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.setattr(execution, "_follow_runner", lambda work: None)
    assert execution.main(str(tmp_path)) == 0
    second = json.loads((tmp_path / "result.ipynb").read_text())
    for notebook in (first, second):
        notebook["metadata"].pop("cflib")
        assert notebook["metadata"]["papermill"].pop("duration") > 0
    assert first == second
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (progress["cell"], progress["cells"]) == (4, 4)
    assert not alive(progress["kernel"])


def test_an_execution_that_cannot_begin_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "_follow_runner", lambda work: None)
    assert execution.main(str(tmp_path)) == 1
    assert json.loads((tmp_path / "error.json").read_text())["name"] == "FileNotFoundError"


# Slow: real kernels killed in every way

WAITING = """import os, subprocess, sys, time
open("pids", "w").write(f"{os.getpid()} {subprocess.Popen(['sleep', '600']).pid}")
os.rename("pids", "ready")
if not os.path.exists("go"): time.sleep(600)"""


@pytest.fixture
def waiting(tmp_path):
    make(tmp_path, "01_good", "open('count', 'a').write('x')")
    make(tmp_path, "02_waiting", WAITING)
    return tmp_path


def processes(place):
    wait_for((place / "ready").exists)
    return [int(pid) for pid in (place / "ready").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_or_killed_runner_leaves_no_kernel_and_the_same_command_completes(waiting, number, code):
    process = cli("--preset", "smoke", place=waiting)
    pids = processes(waiting)
    assert executed(waiting) == ["01_good.smoke.ipynb"]
    process.send_signal(number)
    process.wait(60)
    assert process.returncode == code
    wait_for(lambda: not any(alive(pid) for pid in pids), 10)
    assert executed(waiting) == ["01_good.smoke.ipynb"]
    (waiting / "go").touch()
    again = cli("--preset", "smoke", place=waiting)
    shown, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    assert "01_good.smoke  up to date" in shown
    assert executed(waiting) == ["01_good.smoke.ipynb", "02_waiting.smoke.ipynb"]
    assert (waiting / "count").read_text() == "x"


@pytest.mark.slow
def test_a_time_limit_ends_the_kernel_and_its_children(waiting):
    process = cli("waiting", "--preset", "smoke", "--timeout", "0.3", place=waiting)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "TimeLimit: not done after 0.3 minutes" in shown
    assert "KeyboardInterrupt" in outputs(waiting / "failed" / "02_waiting.smoke.ipynb")
    wait_for(lambda: not any(alive(pid) for pid in processes(waiting)), 10)


@pytest.mark.slow
def test_a_kernel_that_dies_is_a_failure_with_its_likely_reason(tmp_path):
    make(tmp_path, "01_a", "import os\nos.kill(os.getpid(), 9)")
    process = cli("--preset", "smoke", place=tmp_path)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "DeadKernelError: Kernel died: often memory ran out" in shown


@pytest.mark.slow
def test_a_sweep_runs_into_its_own_folder(tmp_path):
    make(tmp_path, "01_a", "print(rounds + 100)")
    process = cli("a", "--sweep", "rounds=1,2", "--jobs", "2", place=tmp_path)
    assert process.wait(120) == 0
    copies = sorted((tmp_path / "sweeps").glob("*"))
    assert [path.name for path in copies] == ["01_a.quick.rounds=1.ipynb", "01_a.quick.rounds=2.ipynb"]
    assert ["101" in outputs(copies[0]), "102" in outputs(copies[1])] == [True, True]
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_plain_papermill_runs_a_notebook_from_any_folder(tmp_path):
    path = make(tmp_path, "01_a", "print(rounds + 100, preset)")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "papermill", str(path), "out.ipynb", "-p", "rounds", "5"]
    subprocess.run(command, cwd=elsewhere, check=True, capture_output=True)
    assert "105 quick" in outputs(elsewhere / "out.ipynb")
