"""Federated runs on real digits: the same record for any number of workers, interrupted or not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from cflib import attacks, checkpoints, datasets, methods, partition
from cflib.client import Attack
from cflib.distances import clustering_temperature, cosine_distances
from cflib.experiment import Measures, Run
from cflib.federation import Federation
from cflib.models import Network, initial_weights
from cflib.protocol import Job, Schedule
from cflib.records import Store
from cflib.runs import gather, models_after, run
from cflib.server import RoundError, generic_model
from cflib.simulation import Attendance, Simulation
from cflib.training import Training

GROUPS = 3


def digits_run(method=None, *, rounds=3, clients=12, **changes) -> Run:
    """Clients in three equal groups that share no class."""
    data = datasets.load("digits")
    split = partition.cluster_classes(
        data.train_labels,
        n_clients=clients,
        overlap=False,
        balance=True,
        rng=np.random.default_rng(0),
        test_labels=data.test_labels,
    )
    spec = Run(
        method or methods.fedavg(),
        Federation(data, split),
        Network("mlp", input_shape=(8, 8, 1), classes=10, options={"hidden": (32,), "scale": 16}),
        Training(optimizer="sgd", learning_rate=0.1, epochs=2, batch_size=20),
        rounds=rounds,
    )
    return replace(spec, **changes)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("CFLIB_RECORDS", str(tmp_path / "records"))
    monkeypatch.setenv("CFLIB_CHECKPOINTS", str(tmp_path / "checkpoints"))


def compute(spec, **options):
    return run(spec, progress=False, **options)


def test_the_number_of_workers_changes_nothing(tmp_path):
    spec = digits_run(methods.louvain_cfl("1nn"), schedule=Schedule(share=0.5))
    digests = {compute(spec, workers=w, store=Store(tmp_path / str(w))).digest for w in (1, 2, 5)}
    assert len(digests) == 1


def test_a_finished_run_is_read_not_computed(tmp_path):
    first = compute(digits_run())
    began = time.perf_counter()
    assert compute(digits_run()).digest == first.digest
    assert time.perf_counter() - began < 1
    assert [p.suffix for p in (tmp_path / "records").iterdir()] == [".npz"]
    assert not any((tmp_path / "checkpoints").glob("*/state.json"))


def test_gathering_reads_what_is_there_and_computes_only_what_is_wanted(tmp_path, monkeypatch):
    specs = {("a", seed): digits_run(seed=seed, rounds=1) for seed in (0, 1)}
    store = Store(tmp_path / "gathered")
    assert gather(specs, store=store, compute=lambda name: name == ("a", 1)).keys() == {("a", 1)}
    monkeypatch.setattr("cflib.runs.run", None)
    assert gather(specs, store=store, compute=lambda name: False).keys() == {("a", 1)}


def test_progress_counts_the_runs_to_compute_and_equal_ones_once(tmp_path, capfd):
    specs = {name: digits_run(seed=seed, rounds=1) for name, seed in {"old": 0, "new": 1, "same": 1, "held": 2}.items()}
    store = Store(tmp_path / "gathered")
    old = gather({"old": specs["old"]}, store=store, progress=False)["old"]
    found = gather(specs, store=store, compute=lambda name: name != "held")
    assert list(found) == ["old", "new", "same"]
    assert found["old"].digest == old.digest
    assert found["new"].digest == found["same"].digest
    shown = [line for line in capfd.readouterr().err.splitlines() if "round" in line]
    assert {line.split(":")[0] for line in shown} == {"run 1 of 1"}


def test_a_damaged_record_is_kept_aside_and_computed_again(tmp_path):
    first = compute(digits_run(rounds=2))
    (path,) = (tmp_path / "records").glob("*.npz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.warns(UserWarning, match="is refused"):
        assert compute(digits_run(rounds=2)).digest == first.digest
    assert len(list((tmp_path / "records").glob("*.damaged-*"))) == 1


def test_a_run_in_which_nobody_answers_stops_and_keeps_what_was_done(tmp_path):
    silence = Attendance(silent={2: tuple(range(12))})
    spec = digits_run(rounds=4, attendance=silence)
    with pytest.raises(RoundError, match="round 3: none of 12 clients gave a usable reply"):
        compute(spec)
    assert checkpoints.load(tmp_path / "checkpoints" / spec.key)[0].round == 2


def test_a_run_with_a_lambda_works_but_is_not_kept(tmp_path):
    method = replace(methods.fedavg(), combine=lambda models, samples: models[0])
    with pytest.warns(UserWarning, match="neither kept nor resumable"):
        assert len(compute(digits_run(method)).rounds) == 3
    assert not (tmp_path / "records").exists()


def test_an_interrupted_run_goes_on_where_it_stopped_and_ends_the_same(tmp_path, monkeypatch):
    spec = digits_run(methods.flic(round=3), rounds=5, schedule=Schedule(share=0.4))
    whole = compute(spec, store=Store(tmp_path / "whole"))
    from cflib import drive

    seen = []

    def interrupt(tables, spec, before, after, runtime):
        seen.append(after.round)
        measured(tables, spec, before, after, runtime)
        if len(seen) in (3, 5):  # with the rows of the round already written
            raise KeyboardInterrupt

    measured = drive.measure
    monkeypatch.setattr(drive, "measure", interrupt)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            compute(spec)
    assert compute(spec).digest == whole.digest
    assert seen == [1, 2, 3, 3, 4, 4, 5]


def test_a_run_that_starts_from_anothers_round_equals_one_loop():
    base = digits_run(replace(methods.fedavg(combine=methods.ocfl().combine)), rounds=4)
    watching = replace(
        base,
        method=replace(
            base.method, describe=methods.ocfl().describe, compare=cosine_distances, watch=clustering_temperature
        ),
    )
    one = compute(replace(base, method=methods.ocfl("kmeans", trigger="first_rise"), rounds=4))
    shot = next(e["round"] for e in one.events if e["event"].startswith("clustered"))
    assert shot > 1
    labels = one.labels[shot - 1]
    child = replace(
        base, method=replace(methods.oracle(labels.tolist()), combine=base.method.combine), start=(watching, shot - 1)
    )
    two = compute(child)
    np.testing.assert_array_equal(one.labels[shot - 1 :], two.labels)
    mine = one.rounds.query("round >= @shot")
    np.testing.assert_array_equal(mine["accuracy_received"].to_numpy(), two.rounds["accuracy_received"].to_numpy())


def test_kept_snapshots_spare_the_parents_rounds():
    base = digits_run(rounds=3)
    child = replace(base, method=methods.oracle([0] * 6 + [1] * 6), start=(base, 2))
    compute(base, snapshots=[2])
    from cflib import drive

    began: list[int] = []
    original = drive.serve

    def watched(method, runtime, state, **options):
        began.append(state.round)
        return original(method, runtime, state, **options)

    drive.serve = watched
    try:
        compute(child)
    finally:
        drive.serve = original
    assert began == [2]


def test_a_snapshot_that_cannot_be_read_is_made_again(tmp_path):
    base = digits_run(rounds=3)
    child = replace(base, method=methods.oracle([0] * 6 + [1] * 6), start=(base, 2))
    whole = compute(child, store=Store(tmp_path / "elsewhere")).digest
    compute(base, snapshots=[2])
    kept = tmp_path / "checkpoints" / base.key / "snapshot-2.npz"
    kept.write_bytes(b"cut short")
    with pytest.warns(UserWarning, match=r"snapshot-2.npz cannot be used .* it is removed"):
        assert compute(child).digest == whole
    assert not kept.exists()


def test_the_rounds_of_a_parent_that_is_made_again_count(capfd):
    base = digits_run(rounds=8)
    gather({"child": replace(base, method=methods.oracle([0] * 6 + [1] * 6), start=(base, 6))})
    assert "round 8/8" in capfd.readouterr().err


def test_models_of_a_finished_run_can_be_had_again_and_combined_on_demand():
    spec = digits_run(methods.oracle([0] * 4 + [1] * 4 + [2] * 4), rounds=2)
    record = compute(spec)
    models, labels = models_after(spec, progress=False)
    np.testing.assert_array_equal(labels, record.labels[-1])
    simulation = Simulation(spec.federation, spec.network, spec.training, seed=0)
    scores = simulation.score([*models, generic_model(models, labels, [0, 2])])
    found = record.clusters.query("round == 2")["accuracy"].to_numpy()
    np.testing.assert_allclose([s.accuracy for s in scores[:3]], found, rtol=1e-6)
    assert scores[0].per_class[7:].mean() == scores[2].per_class[:4].mean() == 0
    assert scores[3].per_class[:4].mean() > 0
    assert scores[3].per_class[7:].mean() > 0


EXPECTED = {
    "oracle": (methods.oracle([0] * 4 + [1] * 4 + [2] * 4), 1),
    "louvain_cfl_1nn": (methods.louvain_cfl("1nn"), 8),
    "louvain_cfl_avg": (methods.louvain_cfl("avg"), 8),
    "louvain_cfl_wnn": (methods.louvain_cfl("wnn"), 8),
    "late": (methods.late(round=4), 5),
    "agreement_cfl": (methods.agreement_cfl(), 8),
    "bias_clustering_kmeans": (methods.bias_clustering("kmeans", n_clusters=3), 2),
    "bias_clustering_dbscan": (methods.bias_clustering("dbscan", eps=0.1), 2),
    "flic": (methods.flic(round=4, self_loops=False), 5),
    "ocfl_hdbscan": (methods.ocfl("hdbscan", trigger="algorithm_1"), 8),
    "ocfl_kmeans": (methods.ocfl("kmeans", trigger="algorithm_1"), 8),
    "ocfl_affinity": (methods.ocfl("affinity", trigger="algorithm_1"), 8),
    "briggs": (methods.briggs(round=3, threshold=0.6), 4),
    "sattler": (methods.sattler(eps1=0.4, eps2=0.5, cooldown=2), 8),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_method_recovers_clearly_separated_groups(name):
    method, rounds = EXPECTED[name]
    record = compute(digits_run(method, rounds=rounds))
    assert record.rounds["adjusted_rand"].iloc[-1] == 1, record.labels[-1]
    assert record.rounds["accuracy_received"].iloc[-1] == pytest.approx(GOLDEN[name], abs=0.02)


def test_mean_shift_recovers_the_groups_when_there_are_enough_clients_to_estimate_its_bandwidth():
    few, many = (compute(digits_run(methods.ocfl("mean_shift"), rounds=3, clients=n)) for n in (12, 30))
    assert many.rounds["adjusted_rand"].iloc[-1] == 1
    assert few.rounds["purity"].iloc[-1] == 1  # groups are cut in pieces, never mixed


def test_ifca_sorts_most_clients_into_groups():
    record = compute(digits_run(methods.ifca(3), rounds=6))
    assert record.rounds["adjusted_rand"].iloc[-1] > 0.3


def test_a_client_asked_again_about_the_same_models_remembers_its_choice():
    spec = digits_run(methods.ifca(2))
    runtime = Simulation(spec.federation, spec.network, spec.training, seed=0)
    models = tuple(initial_weights(spec.network, seed) for seed in (0, 1))
    first, other = (runtime.map([Job(0, 1, "evaluate", pair, "loss")])[0].chosen for pair in (models, models[::-1]))
    assert other == 1 - first  # the same model, at another place
    before = runtime.map([Job(0, 1, "evaluate", models, "loss")])[0]
    runtime.clients[0] = runtime.clients[9]  # whose own choice would differ
    again, anew = (
        runtime.map([Job(0, 2, "train", pair, "loss")])[0].chosen for pair in (models, models[:1] + models[1:])
    )
    runtime.close()
    assert (before.chosen, again, anew) == (first, first, 1 - first)


def test_clustering_beats_one_model_for_all_on_separated_groups():
    one, three = compute(digits_run(rounds=5)), compute(digits_run(EXPECTED["oracle"][0], rounds=5))
    assert three.rounds["accuracy_received"].iloc[-1] > one.rounds["accuracy_received"].iloc[-1] + 0.05


def test_a_client_with_an_infinite_update_is_excluded_and_named():
    attack = Attack((2,), update=partial(attacks.gaussian_noise, scale=np.inf))
    record = compute(digits_run(attack=attack, rounds=2))
    assert [(e["round"], e["client"], e["event"]) for e in record.events] == [
        (1, 2, "excluded: not finite"),
        (2, 2, "excluded: not finite"),
    ]
    assert record.rounds["excluded"].tolist() == [1, 1]


def test_attackers_hurt_and_a_robust_mean_helps():
    attack = Attack((0, 5, 9), update=attacks.minus_grad)
    clean = compute(digits_run(rounds=4)).rounds["accuracy_global"].iloc[-1]
    hurt = compute(digits_run(rounds=4, attack=attack)).rounds["accuracy_global"].iloc[-1]
    from cflib.choices import plain_median

    held = compute(digits_run(methods.fedavg(combine=plain_median), rounds=4, attack=attack))
    assert hurt < clean
    assert len(held.rounds) == 4


@pytest.mark.parametrize(
    "attack",
    [
        Attack((1, 4), labels=partial(attacks.label_flip, classes=10)),
        Attack((1, 4), collude=attacks.ipm),
        Attack((1, 4), collude=attacks.alie),
        Attack((1, 4), collude=partial(attacks.force_aggregate, target=np.zeros(2410))),
        Attack((1, 4), update=attacks.random_weights),
    ],
)
def test_every_kind_of_attack_runs_and_changes_the_model(attack):
    clean = compute(digits_run(rounds=2)).rounds["accuracy_global"].tolist()
    attacked = compute(digits_run(rounds=2, attack=attack)).rounds["accuracy_global"].tolist()
    assert clean != attacked


def test_an_attack_needs_exactly_one_means():
    with pytest.raises(ValueError, match="exactly one"):
        Attack((0,))


def test_clients_join_leave_return_and_fall_silent():
    attendance = Attendance(joins={0: 2}, leaves={1: 1}, returns={1: 3}, silent={0: (5,)})
    assert [0 in attendance.present(12, r) for r in range(4)] == [False, False, True, True]
    assert [1 in attendance.present(12, r) for r in range(4)] == [True, False, False, True]
    record = compute(digits_run(rounds=2, attendance=attendance))
    assert [(e["round"], e["client"], e["event"]) for e in record.events] == [(1, 5, "excluded: no reply")]
    with pytest.raises(ValueError, match="dropout is 1"):
        Attendance(dropout=1)


def test_random_dropouts_follow_the_seed():
    spec = digits_run(rounds=2, attendance=Attendance(dropout=0.4))
    gone = [{e["client"] for e in compute(replace(spec, seed=s)).events} for s in (0, 1)]
    assert gone[0]
    assert gone[0] != gone[1]


def test_views_say_how_good_own_received_and_global_models_are():
    spec = digits_run(
        methods.louvain_cfl("avg"), measures=Measures(clients_every=2, clients=("received", "own", "global")), rounds=3
    )
    record = compute(spec)
    last = record.clients.query("round == 3")
    assert last["accuracy_own"].mean() > last["accuracy_global"].mean()
    np.testing.assert_array_equal(last["accuracy_received"], last["accuracy_global"])
    final = record.rounds.iloc[-1]
    assert final["accuracy_global_on_clients"] == pytest.approx(last["accuracy_global"].mean())
    assert final["accuracy_global"] != pytest.approx(last["accuracy_global"].mean())  # the server's own test set
    assert sorted(record.clients["round"].unique()) == [2, 3]
    assert {"silhouette", "silhouette_as_published", "adjusted_rand", "f1_general"} <= set(record.rounds)
    assert record.kept.tolist() == [1, 2, 3]


def test_closing_rounds_are_all_tried_on_clients_and_change_nothing_else():
    seldom, closing = (Measures(clients_every=3, closing=rounds, server=()) for rounds in (0, 3))
    few, more = (compute(digits_run(rounds=7, measures=measures)) for measures in (seldom, closing))
    assert few.clients["round"].unique().tolist() == [3, 6, 7]
    assert more.clients["round"].unique().tolist() == [3, 5, 6, 7]
    shared = more.clients[more.clients["round"].isin([3, 6, 7])].reset_index(drop=True)
    assert shared.equals(few.clients)


def test_matrices_kept_let_a_reader_cluster_again():
    record = compute(digits_run(methods.louvain_cfl("1nn"), rounds=2))
    again = methods.louvain_cfl("1nn").cluster(record.matrix(2).astype(float))
    np.testing.assert_array_equal(again, record.labels[-1])


def test_provenance_names_versions_processor_and_seconds():
    made = compute(digits_run(rounds=1)).provenance
    assert {"commit", "versions", "processor", "instructions", "lock", "seconds"} <= set(made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"start": (None, 9)}, "starts from round 9"),
        ({"start": (digits_run(rounds=1), 2)}, "starts from round 2 of another that computes rounds 1 to 1"),
        ({"start": (digits_run(clients=10), 2)}, "n_clients is 12, but the run that it goes on from has 10"),
        ({"start": (replace(digits_run(), network=Network("linear", (8, 8))), 2)}, "network is"),
        ({"attack": Attack((3, 12), update=attacks.minus_grad)}, r"attack names clients \[12\]: there are 0 to 11"),
        ({"attendance": Attendance(silent={0: (99,)})}, "attendance.silent names clients"),
    ],
)
def test_impossible_runs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        digits_run(**changes)


def test_a_method_that_needs_two_models_does_not_go_on_from_one(tmp_path):
    with pytest.raises(ValueError, match=r"ifca needs 2 models to go on from, but fedavg has 1 after round 2"):
        compute(digits_run(methods.ifca(2), start=(digits_run(), 2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": ("recieved",)}, "recieved"),
        ({"server": ("cluster",)}, "cluster"),
        ({"every": 0}, "every is 0"),
        ({"closing": -1}, "closing is -1"),
    ],
)
def test_impossible_measures_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Measures(**options)


def test_a_checkpoint_that_cannot_be_read_is_dropped_with_a_warning_and_the_run_starts_again(tmp_path):
    spec = digits_run(rounds=2)
    place = tmp_path / "checkpoints" / spec.key
    place.mkdir(parents=True)
    (place / "state.json").write_text('{"format": 0}')
    (place / ".model-1-0.npz-abc").write_bytes(b"left by a killed process")
    with pytest.warns(UserWarning, match="cannot be used"):
        record = compute(spec)
    assert len(record.rounds) == 2
    assert not place.exists()


def test_a_checkpoint_writes_only_what_is_new_however_long_the_run(tmp_path, monkeypatch):
    from cflib import checkpoints, drive

    spec = digits_run(rounds=8)
    written = []

    def write(path, arrays, write=checkpoints._write):
        write(path, arrays)
        written.append((path.name, path.stat().st_size))

    monkeypatch.setattr(checkpoints, "_write", write)
    runtime = drive.runtime_of(spec)
    record = drive.conduct(spec, runtime, name=spec.key, place=tmp_path / "here", progress=False, every=0)
    runtime.close()
    pieces = [(name, size) for name, size in written if name.startswith("rows-")]
    assert [name for name, _ in pieces] == [f"rows-{round}.npz" for round in range(1, 9)]
    assert max(size for _, size in pieces) < 1.1 * min(size for _, size in pieces)
    state, about, rows = checkpoints.load(tmp_path / "here")
    assert state.round == 8
    assert drive.Tables.restored(about, rows).record(spec.key, spec.specification, {}).digest == record.digest


def test_a_run_that_goes_on_from_another_does_so_too_if_its_checkpoint_cannot_be_read(tmp_path):
    base = digits_run(rounds=3)
    child = replace(base, method=methods.oracle([0] * 6 + [1] * 6), start=(base, 2))
    whole = compute(child, store=Store(tmp_path / "elsewhere")).digest
    place = tmp_path / "checkpoints" / child.key
    place.mkdir(parents=True, exist_ok=True)
    (place / "state.json").write_text('{"format": 0}')
    with pytest.warns(UserWarning, match="cannot be used"):
        assert compute(child).digest == whole


@pytest.mark.parametrize("round", [0, 4])
def test_models_of_a_round_that_a_run_does_not_have_are_refused(round):
    with pytest.raises(ValueError, match="has rounds 1 to 3"):
        models_after(digits_run(rounds=3), round)


def test_a_model_that_overflows_is_never_the_one_of_lowest_loss():
    spec = digits_run()
    good = initial_weights(spec.network, 0)
    wild = [array * np.float32(1e30) for array in good]
    simulation = Simulation(spec.federation, spec.network, spec.training, seed=0)
    with contextlib.closing(simulation), np.errstate(all="ignore"):
        (reply,) = simulation.map([Job(0, 0, "train", (wild, good), "loss")])
    assert reply.chosen == 1


GOLDEN = {
    "oracle": 0.691,
    "louvain_cfl_1nn": 0.968,
    "louvain_cfl_avg": 0.775,
    "louvain_cfl_wnn": 0.968,
    "late": 0.939,
    "agreement_cfl": 0.968,
    "bias_clustering_kmeans": 0.724,
    "bias_clustering_dbscan": 0.724,
    "flic": 0.914,
    "ocfl_hdbscan": 0.968,
    "ocfl_kmeans": 0.968,
    "ocfl_affinity": 0.968,
    "briggs": 0.926,
    "sattler": 0.947,
}
"""Final accuracies: if one changes on purpose, raise ``cflib.keys.RESULTS_VERSION`` and write the new one here."""

KILLED = """
import sys
from tests.test_runs import digits_run
from cflib import drive, methods, runs
from cflib.protocol import Schedule
drive.CHECKPOINT_SECONDS = 0.0
runs.run(digits_run(methods.flic(round=20), rounds=40, schedule=Schedule(share=0.5)), progress=True)
"""


@pytest.mark.slow
def test_a_run_killed_several_times_in_mid_round_ends_bit_for_bit_the_same(tmp_path):
    spec = digits_run(methods.flic(round=20), rounds=40, schedule=Schedule(share=0.5))
    whole = compute(spec, store=Store(tmp_path / "whole"))
    place = tmp_path / "checkpoints" / spec.key / "state.json"
    killed = 0
    for attempt in range(6):
        process = subprocess.Popen([sys.executable, "-c", KILLED], env=dict(os.environ), stderr=subprocess.DEVNULL)
        before = place.stat().st_mtime_ns if place.exists() else 0
        deadline = time.monotonic() + 120
        while process.poll() is None and (not place.exists() or place.stat().st_mtime_ns == before):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.05 * attempt)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed >= 3
    assert compute(spec).digest == whole.digest


CROWD = """
import resource
import numpy as np
from cflib import datasets, methods, partition
from cflib.experiment import Measures, Run
from cflib.federation import Federation
from cflib.models import Network
from cflib.runs import run
from cflib.training import Training

data = datasets.load("mnist")
split = partition.label_swap(
    data.train_labels, n_clients=100, samples=20, rng=np.random.default_rng(0), test_labels=data.test_labels
)
spec = Run(
    methods.flic(round=2),
    Federation(data, split),
    Network("mcmahan_cnn", input_shape=(28, 28)),
    Training(batch_size=10),
    rounds=3,
    measures=Measures(clients=(), server=()),
)
run(spec, progress=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_a_hundred_clients_with_flics_memory_stay_under_four_gigabytes():
    done = subprocess.run([sys.executable, "-c", CROWD], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4e9
