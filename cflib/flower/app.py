"""The Flower app that ``flwr run`` starts: what the run config asks for, done by the same code as in one process.

The run config names everything in words, e.g. ``method = "flic(round=3)"``; server and clients build the same
``Run`` from it. The app runs from a copy elsewhere, so the folders of data and records come from the configuration.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Mapping
from functools import partial
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from cflib import attacks, datasets, methods, partition
from cflib.arrays import check_settings
from cflib.client import Attack, perform
from cflib.experiment import Measures, Run, View
from cflib.federation import Federation
from cflib.flower.runtime import GridRuntime, Roster, pack_reply, unpack
from cflib.models import Network
from cflib.protocol import Schedule
from cflib.records import Store
from cflib.runs import run_on
from cflib.training import Training

DEFAULTS: dict[str, Any] = {
    "method": "ocfl_hdbscan",
    "dataset": "digits",
    "partition": "label_swap(groups=2)",
    "clients": 0,
    "names": "",
    "network": "mlp(hidden=(32,))",
    "training": "sgd(learning_rate=0.1, epochs=2, batch_size=16)",
    "rounds": 5,
    "seed": 0,
    "share": 1.0,
    "attack": "",
    "evaluate-every": 1,
    "models-every": 0,
    "timeout": 600.0,
    "wait": 300.0,
    "least-clients": 1,
    "data": "",
    "records": "",
}
"""The run config as ``pyproject.toml`` sets it; ``deploy/README.md`` says what each means."""


def calls(text: str, what: str) -> list[tuple[str, dict[str, Any]]]:
    """Read names with settings, one or several.

    >>> calls("fedavg, flic(round=3)", "method")
    [('fedavg', {}), ('flic', {'round': 3})]
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        found = []
        for part in tree.elts if isinstance(tree, ast.Tuple) else [tree]:
            name = part.func if isinstance(part, ast.Call) else part
            if not isinstance(name, ast.Name) or (isinstance(part, ast.Call) and part.args):
                raise ValueError(ast.unparse(part))
            settings = part.keywords if isinstance(part, ast.Call) else []
            found.append((name.id, {str(s.arg): ast.literal_eval(s.value) for s in settings}))
        return found
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{what} is {text!r}: write a name with settings, e.g. flic(round=3)") from error


def specify(config: Mapping[str, Any]) -> list[Run]:
    """Return the runs that a run config asks for, one for each method; what it leaves out has its default."""
    if unknown := sorted(set(config) - set(DEFAULTS)):
        raise ValueError(f"the run config has no {unknown}: it knows {sorted(DEFAULTS)}")
    given = {**DEFAULTS, **config}
    (split, options), (optimizer, training), (name, layers) = (
        _one(given[what], what) for what in ("partition", "training", "network")
    )
    if split not in partition.SPLITS:
        raise ValueError(f"partition is {split!r}: choose one of {', '.join(partition.SPLITS)}")
    if given["clients"] < 1:
        raise ValueError(f"clients is {given['clients']}: a run needs at least 1")
    dealt_with = ("labels", "n_clients", "rng", "test_labels")
    check_settings(getattr(partition, split), options, f"partition {split}", given=dealt_with)
    check_settings(Training, training, f"training {optimizer}", given=("optimizer",))
    data = datasets.load(given["dataset"])
    dealt = getattr(partition, split)(
        data.train_labels,
        n_clients=given["clients"],
        rng=np.random.default_rng(given["seed"]),
        test_labels=data.test_labels,
        **options,
    )
    views: tuple[View, ...] = ("received",) if given["evaluate-every"] else ()
    every = given["evaluate-every"] or given["rounds"]
    return [
        Run(
            methods.get(method, **settings),
            Federation(data, dealt),
            Network(name, data.train_images.shape[1:], len(data.class_names), {"scale": data.pixel_max, **layers}),
            Training(**{"optimizer": optimizer, **training}),
            rounds=given["rounds"],
            seed=given["seed"],
            schedule=Schedule(share=given["share"]),
            attack=_attack(given["attack"]),
            measures=Measures(every=every, clients_every=every, clients=views),
        )
        for method, settings in calls(given["method"], "method")
    ]


def _one(text: str, what: str) -> tuple[str, dict[str, Any]]:
    found = calls(text, what)
    if len(found) != 1:
        raise ValueError(f"{what} is {text!r}: name exactly one")
    return found[0]


def _attack(text: str) -> Attack | None:
    """Read an attack, e.g. ``minus_grad(clients=(0, 1))``."""
    if not text:
        return None
    name, settings = _one(text, "attack")
    if name not in attacks.MEANS or not isinstance(settings.get("clients"), (tuple, list)):
        raise ValueError(f"attack is {text!r}: name one of {', '.join(attacks.MEANS)} and its clients=(0, 1)")
    clients, function = settings.pop("clients"), getattr(attacks, name)
    check_settings(function, settings, f"attack {name}", given=("update", "updates", "labels", "rng", "weights"))
    return Attack(clients=clients, **{attacks.MEANS[name]: partial(function, **settings) if settings else function})


def settle(data: str) -> None:
    """Read data sets from this folder; without one, from the user's cache if this is an app's copy of the code."""
    project = Path(__file__).resolve().parents[2]
    if data:
        os.environ["CFLIB_CACHE"] = os.environ["CFLIB_DATA"] = data
    elif not (project / "requirements.lock").is_file():  # not a checkout
        os.environ.setdefault("CFLIB_CACHE", str(_user_cache()))


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cflib"


def serve_runs(grid: Grid, context: Context) -> None:
    """Conduct the runs that the run config names, one after the other; a stopped one goes on from its last round."""
    config = {**DEFAULTS, **context.run_config}
    settle(config["data"])
    place = Path(config["records"] or _user_cache() / "flower").expanduser()
    names = tuple(name.strip() for name in config["names"].split(",") if name.strip())
    roster = Roster(grid, names=names, ttl=config["timeout"])
    config["clients"] = config["clients"] or roster.size(seconds=config["wait"])
    for spec in specify(config):
        if (done := Store(place).path(spec.key)).exists():
            log(INFO, "%s was run before; to run it anew, remove %s", spec.method.name, done)
        runtime = GridRuntime(
            grid,
            spec,
            roster=roster,
            timeout=config["timeout"],
            wait=config["wait"],
            least=config["least-clients"],
            extra={"clients": config["clients"]},
        )
        every = config["models-every"]
        kept = {round for round in range(1, spec.rounds + 1) if every and round % every == 0} | {spec.rounds}
        try:
            record = run_on(runtime, spec, place=place, snapshots=kept)
        finally:
            runtime.close()
        final = record.rounds.iloc[-1]
        log(INFO, "%s: %d rounds, %d clusters, record %s", spec.method.name, spec.rounds, final["clusters"], record.key)
        for event in record.events:
            log(INFO, "  %s", dict(event))
    log(INFO, "records and models are in %s", place)


def attack_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Make a client malicious if the run config's ``attack`` names it: a mod of the ClientApp."""
    attack = _attack(str(context.run_config.get("attack", "")))
    if attack is not None and "config" in message.content:
        message.content["config"]["malicious"] = message.content["config"]["client"] in attack.clients
    return call_next(message, context)


def work(message: Message, context: Context) -> Message:
    """Do the job that the message carries, on this node's own data."""
    job, config = unpack(message), message.content["config"]
    own = context.node_config.get("partition-id", job.client)
    if own != job.client:
        raise ValueError(f"this node is client {own} and was sent a job for client {job.client}: check the names")
    settle(str(context.node_config.get("data") or context.run_config.get("data", "")))
    spec = _specify_once(tuple(sorted({**context.run_config, "clients": config["clients"]}.items())))
    attack = spec.attack if config.get("malicious") else None
    data = spec.federation.client(job.client)
    return pack_reply(perform(job, data, spec.network, spec.training, seed=spec.seed, attack=attack), message)


def introduce(message: Message, context: Context) -> Message:
    """Say which client this node is, and of how many."""
    said = {
        "client": int(context.node_config["partition-id"]),
        "clients": int(context.node_config.get("num-partitions", 0)),
    }
    return Message(RecordDict({"config": ConfigRecord(said)}), reply_to=message)


@functools.lru_cache(maxsize=4)
def _specify_once(config: tuple[tuple[str, Any], ...]) -> Run:
    """The run of a config: a worker that serves many clients loads the data once."""
    return specify(dict(config))[0]


server = ServerApp()
server.main()(serve_runs)
client = ClientApp(mods=[attack_mod])
for register in (client.train(), client.evaluate(), client.query("descriptor")):
    register(work)
client.query("client")(introduce)
