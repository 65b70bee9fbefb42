"""A Flower grid in one process: real messages, serialised and read back, handed to a real ClientApp."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[Message], Message | None]


@dataclass
class LoopbackGrid(Grid):
    """Nodes with ids that mean nothing, replies in the wrong order; ``faults`` change what a client sends."""

    app: ClientApp
    clients: int
    run_config: Mapping[str, Any]
    names: tuple[str, ...] = ()
    faults: dict[int, Fault] = field(default_factory=dict)
    offline: set[int] = field(default_factory=set)
    sent: list[Message] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = {7919 * (client + 3) % 101: client for client in range(self.clients)}
        self._replies: dict[str, Message] = {}
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as the process of a ServerApp has it

    def set_run(self, run: Any) -> None:
        raise AssertionError("no server asks a grid for this")

    @property
    def run(self) -> Any:
        raise AssertionError("no server asks a grid for this")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("no server asks a grid for this")

    def get_node_ids(self) -> Iterable[int]:
        return [node for node, client in self.ids.items() if client not in self.offline]

    def get_nodes(self) -> Iterable[Any]:
        names, nodes = self.names or ("",) * self.clients, self.get_node_ids()
        return [SimpleNamespace(node_id=node, name=names[self.ids[node]], last_activated_at="") for node in nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = []
        for number, message in enumerate(messages, start=len(self.sent)):
            message.metadata.__dict__["_message_id"] = f"message-{number}"
            pushed.append(f"message-{number}")
            self.sent.append(message)
            reply = self._answer(message_from_proto(message_to_proto(message)))
            if reply is not None:
                self.received.append(reply)
                self._replies[f"message-{number}"] = reply
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in reversed(list(message_ids)) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        own = {} if self.names else {"partition-id": self.ids[node], "num-partitions": self.clients}
        context = Context(1, node, node_config=own, state=RecordDict(), run_config=dict(self.run_config))
        try:
            reply = self.app(message, context)
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        fault = self.faults.get(self.ids[node])
        if fault is not None and not message.metadata.message_type.startswith("query.client"):
            changed = fault(reply)
            return None if changed is None else message_from_proto(message_to_proto(changed))
        return message_from_proto(message_to_proto(reply))
