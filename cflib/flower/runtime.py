"""The Flower runtime: jobs and replies travel as messages of a Flower grid; no algorithm is in here.

A client is known by its partition id, which its node is asked for once, or by the name under which its node is
registered; never by Flower's own node id, which may be new at every start.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from cflib.arrays import IntArray, Weights
from cflib.client import conspire
from cflib.experiment import Run
from cflib.protocol import Job, Reply, Task
from cflib.simulation import score
from cflib.training import Evaluation, trainer

TYPES: dict[Task, str] = {
    "train": MessageType.TRAIN,
    "describe": f"{MessageType.QUERY}.descriptor",
    "evaluate": MessageType.EVALUATE,
}
"""The type of message that carries a task."""
WHO = f"{MessageType.QUERY}.client"
"""The type of message that asks a node which client it is."""
POLL = 0.5  # seconds between two looks for replies
RECHECK = 5.0  # seconds between two looks for nodes that were started anew


class TooFewClientsError(RuntimeError):
    """Fewer clients than needed were online, for as long as the server was willing to wait."""


def pack(job: Job, node: int, *, ttl: float, records: dict[int, ArrayRecord], extra: Mapping[str, Any]) -> Message:
    """Return the message that carries a job to a node; models that several jobs share are packed once."""
    content, shown = RecordDict(), job.round + (job.task != "evaluate")  # rounds as Flower counts them, from 1
    for place, model in enumerate(job.models):
        if id(model) not in records:
            records[id(model)] = ArrayRecord(list(model))
        content[f"arrays.{place}" if place else "arrays"] = records[id(model)]
    content["config"] = ConfigRecord(
        {
            **extra,
            "client": job.client,
            "round": job.round,
            "server-round": shown,
            "choose": job.choose,
            "settings": json.dumps(dict(job.settings)),
        }
    )
    return Message(content, dst_node_id=node, message_type=TYPES[job.task], ttl=ttl, group_id=str(shown))


def unpack(message: Message) -> Job:
    """Return the job that a message carries."""
    config = message.content["config"]
    count = len(message.content.array_records)
    names = [f"arrays.{place}" if place else "arrays" for place in range(count)]
    return Job(
        client=int(config["client"]),
        round=int(config["round"]),
        task={kind: task for task, kind in TYPES.items()}[message.metadata.message_type],
        models=tuple(message.content[name].to_numpy_ndarrays() for name in names),
        choose=config["choose"],
        settings=json.loads(config["settings"]),
    )


def pack_reply(reply: Reply, message: Message) -> Message:
    """Return the message that answers another with a client's reply, in the form that Flower's own strategies read."""
    metrics = {**reply.scores, "num-examples": reply.samples, "chosen": reply.chosen, "client": reply.client}
    content = RecordDict({"arrays": ArrayRecord(list(reply.arrays)), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)


def unpack_reply(message: Message, job: Job) -> Reply:
    """Return the reply that a message carries, or one with an error if it holds none; it never raises."""
    if message.has_error():
        return Reply(job.client, [], error=f"failed: {' '.join(message.error.reason.split())[:300]}")
    try:
        (arrays,) = message.content.array_records.values()
        (metrics,) = message.content.metric_records.values()
        scores = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
        model = arrays.to_numpy_ndarrays()
        if strange := {str(array.dtype) for array in model if array.dtype.kind not in "fiu"}:
            raise ValueError(f"arrays of type {sorted(strange)}")
        return Reply(
            job.client,
            model,
            int(scores.pop("chosen", 0)),
            int(scores.pop("num-examples")),
            {name: value for name, value in scores.items() if name != "client"},
        )
    except Exception as error:  # whatever a client elsewhere may send, the round goes on without it
        return Reply(job.client, [], error=f"unreadable reply: {error!r}"[:300])


class Roster:
    """Which client is behind which node.

    With ``names`` the client i is the node registered under the i-th name, which no other node can claim. Without,
    every node is asked once, by a query, and says its partition id; one that could not say is asked after a restart.
    """

    def __init__(self, grid: Grid, *, names: Sequence[str] = (), ttl: float = 600.0) -> None:
        self.grid, self.names, self.ttl = grid, tuple(names), ttl
        if twice := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise ValueError(f"names has {', '.join(twice)} twice: every client has a name of its own")
        self.clients: dict[int, int] = {}
        self.total = len(self.names)
        """How many clients there are in all, as far as names or nodes tell."""
        self._asked: set[tuple[int, str]] = set()
        self._waiting: dict[str, int] = {}

    def online(self) -> dict[int, int]:
        """Return the node of every client that is online now; of two nodes that claim one, the one started last."""
        nodes = sorted(self.grid.get_nodes(), key=lambda node: node.last_activated_at)
        if self.names:
            return {self.names.index(node.name): node.node_id for node in nodes if node.name in self.names}
        self._ask([(node.node_id, node.last_activated_at) for node in nodes if node.node_id not in self.clients])
        return {self.clients[node.node_id]: node.node_id for node in nodes if node.node_id in self.clients}

    def gather(self, total: int, *, wanted: int, least: int, seconds: float) -> dict[int, int]:
        """Wait until ``wanted`` of the clients are online, but no longer than this; then go on with ``least`` or more.

        Raises ``TooFewClientsError``, naming who is missing, if even those are not there.
        """
        if self.names and total != len(self.names):
            raise ValueError(f"{total} clients but {len(self.names)} names: give every client its name")
        deadline = time.monotonic() + seconds
        while len(found := self._expected(total)) < wanted and time.monotonic() < deadline:
            time.sleep(POLL)
        missing = [self.names[i] if self.names else i for i in range(total) if i not in found]
        if len(found) < least:
            raise TooFewClientsError(
                f"{len(found)} of {total} clients are online and at least {least} are needed; waited {seconds:.0f} s "
                f"for clients {missing}: start their SuperNodes, or ask for fewer (least-clients)"
            )
        if len(found) < wanted:
            warnings.warn(f"going on without clients {missing}, after {seconds:.0f} s", stacklevel=3)
        return found

    def _expected(self, total: int) -> dict[int, int]:
        found = self.online()
        if strange := sorted(client for client in found if not 0 <= client < total):
            warnings.warn(f"nodes say that they are clients {strange}: there are 0 to {total - 1}", stacklevel=4)
        return {client: node for client, node in found.items() if 0 <= client < total}

    def size(self, *, seconds: float) -> int:
        """Return how many clients there are in all: as many as names, or as the nodes say; wait for one that says."""
        deadline = time.monotonic() + seconds
        while not self.total and time.monotonic() < deadline:
            self.online()
            time.sleep(0 if self.total else POLL)
        if not self.total:
            raise TooFewClientsError(
                f"no node said within {seconds:.0f} s how many clients there are: set clients in the run config, or "
                "start SuperNodes with --node-config 'partition-id=0 num-partitions=4'"
            )
        return self.total

    def _ask(self, nodes: Iterable[tuple[int, str]]) -> None:
        """Send the question to nodes that have not had it, and read what has been answered so far."""
        fresh = {node: Message(RecordDict(), node[0], WHO, ttl=self.ttl) for node in nodes if node not in self._asked}
        if fresh:
            self.grid.push_messages(list(fresh.values()))
            self._asked |= set(fresh)
            self._waiting |= {message.metadata.message_id: node for (node, _), message in fresh.items()}
        for answer in self.grid.pull_messages(list(self._waiting)) if self._waiting else ():
            node = self._waiting.pop(answer.metadata.reply_to_message_id)
            try:
                if answer.has_error():
                    raise ValueError(answer.error.reason)
                said = answer.content["config"]
                client, total = int(said["client"]), int(said["clients"])
            except Exception as error:  # whatever a node elsewhere may say
                warnings.warn(f"a node could not say which client it is: {error!r}", stacklevel=3)
                continue
            self.clients[node], self.total = client, max(self.total, total)


class GridRuntime:
    """Sends jobs to the nodes of a Flower grid and waits for their replies, no longer than ``timeout`` seconds.

    Before its first round it waits up to ``wait`` seconds for all clients, later only if fewer than ``least`` are
    online. A client that does not answer, or answers with something unusable, is left out of the round.
    """

    def __init__(
        self,
        grid: Grid,
        spec: Run,
        *,
        roster: Roster | None = None,
        timeout: float = 600.0,
        wait: float = 300.0,
        least: int = 1,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.grid, self.spec, self.timeout, self.wait, self.least = grid, spec, timeout, wait, least
        self.roster = roster or Roster(grid)
        self.extra = dict(extra or {})
        self.nodes: dict[int, int] = {}
        self.began = False
        self.pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="server")

    def present(self, round: int) -> IntArray:
        """Return the clients that are online, after a bounded wait; raise ``TooFewClientsError`` if too few are."""
        n = self.spec.federation.n_clients
        wanted = self.least if self.began else n
        self.nodes = self.roster.gather(n, wanted=wanted, least=self.least, seconds=self.wait)
        self.began = True
        expected = self.spec.attendance.present(n, round)
        return expected[np.isin(expected, list(self.nodes))]

    def map(self, jobs: Sequence[Job]) -> list[Reply]:
        """Send the jobs and return the replies in client order; those of silent clients are missing."""
        attendance, seed, attack = self.spec.attendance, self.spec.seed, self.spec.attack
        sendable = [
            job
            for job in jobs
            if job.client in self.nodes and (job.task == "evaluate" or attendance.answers(job, seed))
        ]
        replies = sorted(self._exchange(sendable), key=lambda reply: reply.client)
        return replies if attack is None else conspire(attack, jobs, replies)

    def score(self, models: Sequence[Weights]) -> list[Evaluation]:
        """Evaluate models on the server's own test data."""
        return score(models, self.spec.federation, trainer(self.spec.network, self.spec.training), self.pool)

    def close(self) -> None:
        """End the worker threads."""
        self.pool.shutdown()

    def _exchange(self, jobs: Sequence[Job]) -> list[Reply]:
        """Send the jobs and collect the replies; a node that was started anew has lost its job and gets it again."""
        deadline = time.monotonic() + self.timeout
        recheck, started = time.monotonic() + RECHECK, self._started()
        waiting, replies = self._send(jobs), []
        while waiting:
            for answer in self.grid.pull_messages(list(waiting)):
                replies.append(unpack_reply(answer, waiting.pop(answer.metadata.reply_to_message_id)))
            if time.monotonic() > deadline:
                break
            if waiting and time.monotonic() > recheck:
                recheck, now = time.monotonic() + RECHECK, self._started()
                again = {
                    name: job
                    for name, job in waiting.items()
                    if now.get(self.nodes[job.client], "") > started.get(self.nodes[job.client], "")
                }
                waiting = {name: job for name, job in waiting.items() if name not in again}
                waiting |= self._send(list(again.values()))
                started |= now
            time.sleep(POLL if waiting else 0)
        return replies

    def _send(self, jobs: Sequence[Job]) -> dict[str, Job]:
        """Send a message for each job and return the jobs by the names of their messages."""
        records: dict[int, ArrayRecord] = {}
        messages = [
            pack(job, self.nodes[job.client], ttl=self.timeout, records=records, extra=self.extra) for job in jobs
        ]
        if messages:
            self.grid.push_messages(messages)
        return {message.metadata.message_id: job for message, job in zip(messages, jobs, strict=True)}

    def _started(self) -> dict[int, str]:
        """Return when each node that is online was started."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}
