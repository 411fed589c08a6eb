"""How the nodes of a run are reached, and asked all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError
from orchestrator.targets.connections.connection import CONNECT_SECONDS, Ssh
from orchestrator.targets.connections.local import Local

AT_ONCE = 64  # nodes that are asked at the same time


def connection_to(host: RunNode, connect_seconds: int = CONNECT_SECONDS) -> Local | Ssh:
    """OpenSSH's `ssh -F CONFIG NODE` is what a host carries; fabric reads the same file."""
    return Ssh(host.node, host.via[2], connect_seconds) if host.via else Local()


def node_program(record: RunRecord, name: str, *arguments: str) -> tuple[str, ...]:
    """The command of one of the node's programs (the subcommands of train/node.py)."""
    return (record.python, f"{record.train}/node.py", name, *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What a program in train/ printed on a node, or why there is nothing."""

    node: str
    value: dict[str, Any] | None
    problem: str = ""


def ask_all(
    hosts: Iterable[RunNode],
    command: Callable[[RunNode], tuple[str, ...]],
    *,
    seconds: float,
    connect_seconds: int = CONNECT_SECONDS,
) -> list[NodeAnswer]:
    """Run a program that prints one JSON object on all nodes at once; -> their answers in order."""

    def ask(host: RunNode) -> NodeAnswer:
        connection = connection_to(host, connect_seconds)
        try:
            answer = connection.capture(command(host), seconds=seconds)
            if answer.code != 0:
                return NodeAnswer(node=host.node, value=None, problem=last_line(answer.err))
            value = values.check_object(values.loads(answer.out, "its answer"), "its answer")
            return NodeAnswer(node=host.node, value=value)
        except ExecuteError as error:
            return NodeAnswer(node=host.node, value=None, problem=error.message)
        except ProtocolError as error:
            return NodeAnswer(node=host.node, value=None, problem=str(error))
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return list(pool.map(ask, hosts))


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it failed without a word"])[-1]
