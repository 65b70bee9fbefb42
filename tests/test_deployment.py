"""Flower for real: Ray workers, then a SuperLink and SuperNodes as processes of their own, with TLS and node keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cflib import checkpoints
from cflib.flower import app as flower_app
from cflib.flower.deployment import Lab
from cflib.records import Store
from cflib.runs import run

pytestmark = pytest.mark.slow
CLIENTS = 4
METHODS = ("fedavg", "louvain_cfl_1nn", "agreement_cfl", "flic(round=1)", "ocfl_hdbscan")
CONFIG = {"method": ", ".join(METHODS), "clients": CLIENTS, "rounds": 2, "models-every": 1}
PATIENCE = 900  # seconds after which something is stuck, on however busy a machine


def wait_until(condition, what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.2)


def finished(place: Path, spec) -> int:
    """How many rounds of a run are safe on disk."""
    path = place / "checkpoints" / spec.key / "state.json"
    try:
        return json.loads(path.read_text())["round"]
    except (OSError, ValueError):
        return spec.rounds if Store(place).path(spec.key).exists() else 0


def check_equal(config, place: Path, own: Path, monkeypatch) -> None:
    """Compare with the same runs in this process: labels of every round, weights of every round, all measures."""
    monkeypatch.setenv("CFLIB_CHECKPOINTS", str(own / "checkpoints"))
    for spec in flower_app.specify(config):
        expected = run(spec, store=Store(own), progress=False, snapshots=range(1, spec.rounds + 1))
        found = Store(place).read(spec.key)
        np.testing.assert_array_equal(found.labels, expected.labels)
        for round in range(1, spec.rounds + 1):
            there, _ = checkpoints.load_snapshot(place / "checkpoints" / spec.key, round)
            here, _ = checkpoints.load_snapshot(own / "checkpoints" / spec.key, round)
            assert [[a.tobytes() for a in model] for model in there] == [[a.tobytes() for a in model] for model in here]
        assert found.digest == expected.digest


def test_a_simulation_on_ray_equals_one_process_bit_for_bit(tmp_path, monkeypatch):
    config = {**CONFIG, "evaluate-every": 1}
    with Lab(tmp_path / "lab", simulation=True, patience=PATIENCE) as lab:
        lab.start_superlink()
        lab.run({**config, "clients": 0, "records": str(tmp_path / "flower")}, nodes=CLIENTS)
    check_equal(config, tmp_path / "flower", tmp_path / "own", monkeypatch)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A SuperLink with TLS and node authentication, and four registered SuperNodes."""
    with Lab(tmp_path_factory.mktemp("lab"), patience=PATIENCE) as lab:
        lab.start_superlink()
        for client in range(CLIENTS):
            lab.start_supernode(f"site{client}", config={"partition-id": client})
        yield lab


def trained(lab: Lab, site: str) -> int:
    """How many jobs of training a node was given so far."""
    return lab.log(site, last=10**9).count("Receiving: train message")


SITES = ",".join(f"site{client}" for client in range(CLIENTS))


def test_a_superlink_killed_between_rounds_loses_none_and_the_result_is_the_same(lab, tmp_path, monkeypatch):
    config = {**CONFIG, "evaluate-every": 0, "names": SITES, "records": str(tmp_path / "flower")}
    second = flower_app.specify(config)[1]
    before = sum(trained(lab, site) for site in SITES.split(","))
    lab.submit(config)
    wait_until(lambda: finished(tmp_path / "flower", second) >= 1, "a round of the second method")
    lab.stop("superlink", signal.SIGKILL)
    kept = finished(tmp_path / "flower", second)
    lab.start_superlink()
    lab.run(config)
    check_equal(config, tmp_path / "flower", tmp_path / "own", monkeypatch)
    asked = sum(trained(lab, site) for site in SITES.split(",")) - before
    assert kept >= 1
    assert asked <= (len(METHODS) * CONFIG["rounds"] + 1) * CLIENTS  # at most the round under way was repeated


def test_a_supernode_killed_in_mid_round_is_left_out_and_keeps_its_cluster_when_it_returns(lab, tmp_path):
    place, victim = tmp_path / "flower", "site3"
    settings = {"method": "briggs(round=1, threshold=0.5)", "partition": "rotation(groups=2)", "rounds": 4}
    config = {**settings, "evaluate-every": 0, "clients": CLIENTS, "names": SITES, "records": str(place)}
    (spec,) = flower_app.specify(config)
    before = trained(lab, victim)
    number = lab.submit(config)
    wait_until(lambda: trained(lab, victim) == before + 2, "the second round")
    lab.stop(victim, signal.SIGKILL)
    assert finished(place, spec) == 1
    wait_until(lambda: finished(place, spec) >= 2, "the second round without the client")
    lab.start_supernode(victim, config={"partition-id": 3})
    lab.wait(number)
    record = Store(place).read(spec.key)
    left_out = [event["round"] for event in record.events if event.get("client") == 3]
    assert 2 in left_out
    assert 4 not in left_out
    assert trained(lab, victim) > before + 2  # it was asked again, by its name
    assert record.labels[0].tolist() == record.labels[-1].tolist() == [0, 0, 1, 1]
    assert [event["client"] for event in record.events if event["event"].startswith("excluded")] == [3] * len(left_out)


def test_a_node_with_a_key_that_nobody_registered_is_refused(lab):
    lab.start_supernode("stranger", register=False)
    wait_until(lambda: lab.processes["stranger"].poll() is not None, "the refusal")
    assert lab.processes["stranger"].returncode != 0
    assert "Failed to activate SuperNode" in lab.log("stranger")


def test_the_deployment_script_does_it_all_on_one_machine(tmp_path):
    script = Path(__file__).resolve().parent.parent / "deploy" / "lab.py"
    command = [sys.executable, script, "--folder", tmp_path, "demo", "--nodes", "2", "method=fedavg", "rounds=1"]
    done = subprocess.run(
        [*map(str, command), "evaluate-every=0"], capture_output=True, text=True, timeout=PATIENCE, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = (tmp_path / "records").glob("*.npz")
    assert record.stem in done.stdout


def test_nothing_is_left_running_when_the_process_that_started_a_lab_is_killed(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from cflib.flower.deployment import Lab\n"
        "lab = Lab(Path(sys.argv[1]), simulation=True); lab.start_superlink()\n"
        "print(lab.processes['superlink'].pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until(lambda: not Path("/proc", done.stdout.strip()).exists(), "the end of the SuperLink", seconds=60)
