"""The Flower runtime in one process, with real messages and the real apps: the same results, and faults survived."""

from __future__ import annotations

import io
import shutil
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp

from cflib import checkpoints, methods
from cflib.flower import app as flower_app
from cflib.flower import runtime as flower
from cflib.flower.runtime import GridRuntime, Roster, TooFewClientsError
from cflib.flower.strategy import ClusteredStrategy
from cflib.protocol import Job, Reply
from cflib.records import Store
from cflib.runs import run
from cflib.server import serve, start
from tests.loopback import LoopbackGrid
from tests.toy import Pull, weights

ROOT = Path(__file__).resolve().parent.parent
FIVE = "fedavg, louvain_cfl_1nn, agreement_cfl, flic(round=2), ocfl_hdbscan"
OTHERS = "ifca, bias_clustering_dbscan, sattler(cooldown=0), late(round=1)"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(flower, "POLL", 0.005)


def config(**changes):
    return {**flower_app.DEFAULTS, "rounds": 3, "models-every": 1, "wait": 0.05, "timeout": 0.05, **changes}


def conduct(settings, place, *, clients=4, grid=None):
    """Run the ServerApp on a grid and return its records by method."""
    settings = {**settings, "records": str(place)}
    grid = grid or LoopbackGrid(flower_app.client, clients, settings)
    flower_app.server(grid, Context(1, 0, node_config={}, state=RecordDict(), run_config=settings))
    specs = flower_app.specify({**settings, "clients": clients})
    return {spec.method.name: (spec, Store(place).read(spec.key)) for spec in specs}


def compute(spec, place):
    return run(spec, store=Store(place), progress=False)


@pytest.mark.parametrize("names", [FIVE, OTHERS])
def test_every_method_ends_as_in_one_process_bit_for_bit(names, tmp_path, monkeypatch):
    monkeypatch.setenv("CFLIB_CHECKPOINTS", str(tmp_path / "own"))
    for spec, found in conduct(config(method=names), tmp_path / "flower").values():
        expected = run(spec, store=Store(tmp_path), progress=False, snapshots=[1, 2, 3])
        assert found.digest == expected.digest
        for round in (1, 2, 3):
            there, labels = checkpoints.load_snapshot(tmp_path / "flower" / "checkpoints" / spec.key, round)
            here, same = checkpoints.load_snapshot(tmp_path / "own" / spec.key, round)
            np.testing.assert_array_equal(labels, same)
            assert [[a.tobytes() for a in model] for model in there] == [[a.tobytes() for a in model] for model in here]


@pytest.mark.parametrize(
    "attack", ["gaussian_noise(scale=0.1, clients=(1,))", "label_flip(clients=(0, 2))", "alie(clients=(3,))"]
)
def test_an_attack_as_a_client_mod_does_what_it_does_in_one_process(attack, tmp_path):
    settings = config(method="fedavg", attack=attack, rounds=2)
    ((spec, found),) = conduct(settings, tmp_path / "flower").values()
    assert found.digest == compute(spec, tmp_path).digest
    assert found.digest != compute(replace(spec, attack=None), tmp_path).digest


def test_an_honest_client_app_ignores_the_attack(tmp_path):
    settings = config(method="fedavg", attack="minus_grad(clients=(0,))", rounds=1)
    honest = ClientApp()
    for register in (honest.train(), honest.evaluate()):
        register(flower_app.work)
    honest.query("client")(flower_app.introduce)
    ((spec, found),) = conduct(settings, tmp_path / "a", grid=LoopbackGrid(honest, 4, settings)).values()
    expected = compute(replace(spec, attack=None), tmp_path)
    np.testing.assert_array_equal(found.rounds["accuracy_received"], expected.rounds["accuracy_received"])


def test_only_the_last_bias_leaves_a_client_that_describes_itself(tmp_path):
    settings = config(method="bias_clustering_dbscan", rounds=1)
    grid = LoopbackGrid(flower_app.client, 4, settings)
    conduct(settings, tmp_path, grid=grid)
    described = [m for m in grid.received if m.metadata.message_type == "query.descriptor"]
    assert len(described) == 4
    for message in described:
        (record,) = message.content.array_records.values()
        assert [array.shape for array in record.to_numpy_ndarrays()] == [(10,)]


def test_a_job_arrives_as_it_was_sent():
    grid = LoopbackGrid(ClientApp(), 1, {})  # sets the identity that messages need
    job = Job(3, 5, "train", (weights(1, 2, 3), weights(1 / 3, np.pi, -0.0)), "loss", {"epochs": 2, "steps": None})
    there = flower.unpack(flower.pack(job, 12, ttl=9.0, records={}, extra={"mine": 1.5}))
    assert replace(there, models=()) == replace(job, models=())
    assert [[a.tobytes() for a in m] for m in there.models] == [[a.tobytes() for a in m] for m in job.models]
    assert not grid.sent


def changed(**replaced):
    """A fault that replaces parts of a reply: its arrays, or metrics (None removes one)."""

    def fault(message):
        for name, value in replaced.items():
            if name == "arrays":
                message.content["arrays"] = ArrayRecord(value(message.content["arrays"].to_numpy_ndarrays()))
            elif value is None:
                del message.content["metrics"][name.replace("_", "-")]
            else:
                message.content["metrics"][name.replace("_", "-")] = value
        return message

    return fault


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda message: None, "no reply"),
        (changed(arrays=lambda arrays: [a * np.nan for a in arrays]), "not finite"),
        (changed(arrays=lambda arrays: arrays[:-1]), "wrong shapes"),
        (changed(arrays=lambda arrays: [a.T for a in arrays]), "wrong shapes"),
        (changed(arrays=lambda arrays: [np.full(a.shape, "x") for a in arrays]), "unreadable reply"),
        (changed(chosen=4), "chose model 4 of 1"),
        (changed(num_examples=0), "with 0 samples"),
        (changed(num_examples=None), "unreadable reply"),
        (lambda message: setattr(message, "content", RecordDict()) or message, "unreadable reply"),
    ],
)
def test_a_client_with_an_unusable_reply_is_named_and_the_run_goes_on(fault, reason, tmp_path):
    settings = config(method="louvain_cfl_1nn", rounds=2)
    grid = LoopbackGrid(flower_app.client, 4, settings, faults={2: fault})
    ((_, record),) = conduct(settings, tmp_path, grid=grid).values()
    assert record.rounds["excluded"].tolist() == [1, 1]
    told = [e for e in record.events if e.get("client") == 2 and e["event"].startswith("excluded")]
    assert [e["round"] for e in told] == [1, 2]
    assert all(reason in e["event"] for e in told)
    assert set(record.clients["client"]) >= {0, 1, 3}


def test_a_client_that_fails_says_why_and_the_run_goes_on(tmp_path):
    settings = config(method="fedavg", rounds=1, partition="label_swap(groups=2, samples=40)")
    grid = LoopbackGrid(failing(1, "the disk is full"), 4, settings)
    ((_, record),) = conduct(settings, tmp_path, grid=grid).values()
    assert any("excluded: failed" in e["event"] and "the disk is full" in e["event"] for e in record.events)
    assert {"round": 1, "client": 1, "event": "not evaluated: no usable reply (received)"} in record.events


def failing(client, words):
    """The app of clients of which one raises an error."""

    def mod(message, context, call_next):
        if "config" in message.content and message.content["config"]["client"] == client:
            raise ValueError(words)
        return call_next(message, context)

    app = ClientApp(mods=[mod])
    for register in (app.train(), app.evaluate()):
        register(flower_app.work)
    app.query("client")(flower_app.introduce)
    return app


def test_too_few_clients_are_waited_for_but_not_for_ever(tmp_path):
    settings = config(method="fedavg", **{"clients": 4, "least-clients": 3})
    grid = LoopbackGrid(flower_app.client, 4, settings, offline={1, 3})
    with pytest.raises(TooFewClientsError, match=r"2 of 4 clients .* at least 3 .* for clients \[1, 3\]: start their"):
        conduct(settings, tmp_path, grid=grid)
    grid.offline = {1}
    with pytest.warns(UserWarning, match=r"going on without clients \[1\]"):
        ((_, record),) = conduct(settings, tmp_path, grid=grid).values()
    assert set(record.clients["client"]) == {0, 2, 3}


def test_nodes_that_do_not_say_how_many_there_are_are_an_error(tmp_path):
    settings = config(method="fedavg")
    with pytest.raises(TooFewClientsError, match=r"no node said .* how many clients"):
        conduct(settings, tmp_path, grid=LoopbackGrid(flower_app.client, 4, settings, offline={0, 1, 2, 3}))


def test_clients_are_known_by_registered_name_without_being_asked(tmp_path):
    settings = config(method="louvain_cfl_1nn", names="north, east, south, west", rounds=2)
    grid = LoopbackGrid(flower_app.client, 4, settings, names=("north", "east", "south", "west"))
    ((spec, found),) = conduct(settings, tmp_path / "flower", grid=grid).values()
    assert found.digest == compute(spec, tmp_path).digest
    assert not [m for m in grid.sent if m.metadata.message_type.startswith("query")]


def test_a_node_refuses_a_job_that_is_meant_for_another_client():
    settings = config(clients=4)
    grid = LoopbackGrid(flower_app.client, 4, settings)
    spec = flower_app.specify(settings)[0]
    runtime = GridRuntime(grid, spec, extra={"clients": 4}, timeout=0.05, wait=0.05)
    runtime.present(0)
    runtime.nodes = {0: runtime.nodes[1]}
    (reply,) = runtime.map([Job(0, 0, "train", (start(spec.method, 4, lambda i: weights(0, 0, 0)).probe,))])
    assert "this node is client 1 and was sent a job for client 0" in reply.error
    runtime.close()


def test_of_two_nodes_that_claim_a_client_the_one_started_last_is_asked():
    grid = LoopbackGrid(flower_app.client, 2, {})
    old, new = grid.ids
    grid.ids = {old: 1, new: 1}
    started = {old: "2026-01-02", new: "2026-01-01"}
    nodes = grid.get_nodes

    def dated():
        return [node for node in nodes() if setattr(node, "last_activated_at", started[node.node_id]) is None]

    grid.get_nodes = dated
    roster = Roster(grid)
    roster.online()
    assert roster.online() == {1: old}


def test_names_that_do_not_fit_the_clients_are_refused_before_anybody_waits():
    grid = LoopbackGrid(flower_app.client, 2, config())
    with pytest.raises(ValueError, match="names has oslo twice"):
        Roster(grid, names=("oslo", "rome", "oslo"))
    with pytest.raises(ValueError, match="3 clients but 2 names"):
        Roster(grid, names=("oslo", "rome")).gather(3, wanted=3, least=1, seconds=60)


def test_a_server_that_is_killed_goes_on_from_its_last_finished_round(tmp_path, monkeypatch):
    settings = config(method="flic(round=2)", rounds=4)
    grid = LoopbackGrid(flower_app.client, 4, settings)
    whole = grid.pull_messages

    def die(ids):
        if sum(m.metadata.message_type == "train" for m in grid.sent) == 12:  # in the third round
            at_death.setattr(checkpoints, "save", lambda *_: None)  # who is killed writes no more
            raise KeyboardInterrupt
        return whole(ids)

    grid.pull_messages = die
    with monkeypatch.context() as at_death, pytest.raises(KeyboardInterrupt):
        conduct(settings, tmp_path / "flower", grid=grid)
    grid.pull_messages = whole
    ((spec, found),) = conduct(settings, tmp_path / "flower", grid=grid).values()
    assert found.digest == compute(spec, tmp_path).digest
    trained = [m.content["config"]["round"] for m in grid.sent if m.metadata.message_type == "train"]
    assert {round: trained.count(round) for round in range(4)} == {0: 4, 1: 4, 2: 8, 3: 4}


def test_the_app_has_the_run_config_that_the_library_knows():
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"] == flower_app.DEFAULTS
    assert app["components"] == {"serverapp": "cflib.flower.app:server", "clientapp": "cflib.flower.app:client"}


def test_only_the_library_is_packed(tmp_path):
    for name in ("cflib", "tests", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    packed = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path))).namelist()
    assert {name.split("/")[0] for name in packed} == {"cflib", "pyproject.toml", ".info"}
    assert "cflib/flower/app.py" in packed


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"method": "flic(3)"}, r"method is 'flic\(3\)': write a name with settings"),
        ({"method": "flic(round=print(1))"}, "write a name with settings"),
        ({"method": "fedavgg"}, "no method 'fedavgg'"),
        ({"partition": "datasets()"}, "partition is 'datasets': choose one of"),
        ({"attack": "minus_grad"}, r"name one of minus_grad, .* and its clients=\(0, 1\)"),
        ({"attack": "blocks(clients=(0,))"}, "name one of minus_grad"),
        ({"partition": "iid, rotation"}, "partition is 'iid, rotation': name exactly one"),
        ({"partition": "iid(groupz=3)"}, "partition iid does not take groupz: its settings are samples"),
        ({"training": "sgd(lr=3)"}, "training sgd does not take lr: its settings are learning_rate"),
        ({"method": "flic(rounds=3)"}, "flic does not take rounds"),
        ({"attack": "minus_grad(clients=0)"}, "name one of minus_grad"),
        ({"attack": "gaussian_noise(clients=(0,))"}, "attack gaussian_noise needs scale"),
        ({"clients": 0}, "clients is 0: a run needs at least 1"),
        ({"mehtod": "fedavg"}, r"the run config has no \['mehtod'\]"),
        ({"dataset": "imagenet"}, "unknown data set 'imagenet'"),
    ],
)
def test_each_mistake_in_a_run_config_is_named(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        flower_app.specify({"clients": 4, **settings})


TARGETS = ((0, 0, 0), (0.2, 0, 0), (8, 9, 5), (8.2, 9, 5))


def puller():
    """A ClientApp that knows nothing of this library but how to say which client it is."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        target = weights(*TARGETS[context.node_config["partition-id"]])
        model = message.content["arrays"].to_numpy_ndarrays()
        trained = ArrayRecord([a + 0.5 * (t - a) for a, t in zip(model, target, strict=True)])
        metrics = MetricRecord({"num-examples": 1, "train_loss": 0.5})
        return Message(RecordDict({"weights": trained, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        here = context.node_config["partition-id"]
        distance = float(np.abs(message.content["arrays"].to_numpy_ndarrays()[0] - weights(*TARGETS[here])[0]).sum())
        metrics = MetricRecord({"num-examples": 1 + here, "distance": distance, "client": here})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    app.query("client")(flower_app.introduce)
    return app


def test_a_strategy_in_anothers_server_app_runs_the_same_loop():
    method, first = methods.louvain_cfl("1nn"), weights(1, 1, 1)
    strategy = ClusteredStrategy(method, clients=4, wait=0.05)
    grid = LoopbackGrid(puller(), 4, {})
    result = strategy.start(grid, ArrayRecord(first), num_rounds=3, train_config=ConfigRecord({"lr": 0.1}))
    pull = Pull(TARGETS)
    states = list(serve(method, pull, start(method, 4, lambda i: first), rounds=3, seed=0))
    assert [labels.tolist() for labels in strategy.labels] == [state.labels.tolist() for state in states]
    assert strategy.labels[-1].tolist() == [0, 0, 1, 1]
    for mine, expected in zip(strategy.state.models, states[-1].models, strict=True):
        assert [a.tobytes() for a in mine] == [a.tobytes() for a in expected]
    trained = [m.content["config"] for m in grid.sent if m.metadata.message_type == "train"]
    assert [config["lr"] for config in trained] == [0.1] * 12
    assert set(result.evaluate_metrics_clientapp[3]) == {"distance"}
    assert len(result.arrays) == 2


def test_a_strategy_leaves_out_a_broken_client():
    grid = LoopbackGrid(puller(), 4, {}, faults={3: lambda message: None})
    strategy = ClusteredStrategy(methods.fedavg(), clients=4, wait=0.05)
    strategy.start(grid, ArrayRecord(weights(1, 1, 1)), num_rounds=1)
    assert strategy.state.excluded == {3: "no reply"}


def test_a_strategy_averages_only_what_is_a_number_with_samples():
    strategy = ClusteredStrategy(methods.fedavg(), clients=4, wait=0.05)
    told = [
        {"accuracy": 0.5, "num-examples": 10},
        {"accuracy": 1.0, "num-examples": 30},
        {"accuracy": 9.0, "num-examples": -9},
        {"accuracy": [1.0, 2.0], "num-examples": 5},
        {"accuracy": float("nan"), "num-examples": 5},
    ]
    questions = [Message(RecordDict(), 1, "evaluate") for _ in told]
    for number, question in enumerate(questions):
        question.metadata.__dict__["_message_id"] = f"question-{number}"
    strategy._sent = [(question, Job(i, 0, "evaluate", ())) for i, question in enumerate(questions)]
    answers = [
        Message(RecordDict({"metrics": MetricRecord(row)}), reply_to=question)
        for row, question in zip(told, questions, strict=True)
    ]
    assert strategy.aggregate_evaluate(1, answers) == {"accuracy": 0.875}
    assert strategy.aggregate_evaluate(1, answers[2:3]) is None


def test_a_strategy_asks_for_the_models_that_it_cannot_make_up():
    with pytest.raises(ValueError, match=r"ifca starts from 2 models: give further_models"):
        ClusteredStrategy(methods.ifca(2), clients=4)


def test_an_answer_carries_numbers_exactly():
    grid = LoopbackGrid(ClientApp(), 1, {})
    message = flower.pack(Job(0, 0, "train", (weights(1, 2, 3),)), 1, ttl=9.0, records={}, extra={})
    reply = Reply(0, weights(1 / 3, 2, 3), 0, 17, {"loss": 0.1 + 0.2, "steps": 4.0})
    back = flower.unpack_reply(flower.pack_reply(reply, message), Job(0, 0, "train", ()))
    assert (back.samples, back.scores) == (17, {"loss": 0.1 + 0.2, "steps": 4.0})
    assert [a.tobytes() for a in back.arrays] == [a.tobytes() for a in reply.arrays]
    assert not grid.received


def test_a_node_that_is_started_anew_in_mid_round_gets_its_job_again(tmp_path, monkeypatch):
    monkeypatch.setattr(flower, "RECHECK", 0.0)
    settings = config(method="fedavg", rounds=1, timeout=20.0)
    grid = LoopbackGrid(flower_app.client, 4, settings)
    nodes, lost = grid.get_nodes, []

    def crash(message):
        lost.append(message)
        grid.faults.clear()
        grid.get_nodes = restarted
        return None

    def restarted():
        found = list(nodes())
        for node in found:
            node.last_activated_at = "later" if grid.ids[node.node_id] == 2 else ""
        return found

    grid.faults[2] = crash
    ((spec, found),) = conduct(settings, tmp_path / "flower", grid=grid).values()
    assert len(lost) == 1
    assert found.digest == compute(spec, tmp_path).digest


def test_a_node_that_cannot_say_which_client_it_is_is_left_alone():
    app = ClientApp()
    grid = LoopbackGrid(app, 2, {})
    roster = Roster(grid)
    with pytest.warns(UserWarning, match="a node could not say which client it is: .*No query function registered"):
        assert roster.online() == {}
    assert roster.online() == {}
    assert len(grid.sent) == 2  # it is not asked over and over
