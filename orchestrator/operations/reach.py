"""How a target of a plan, or of a run's card, is reached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from orchestrator.backends.local import Local
from orchestrator.backends.ssh import CONNECT_SECONDS, Ssh
from orchestrator.errors import ExecuteError
from orchestrator.plan import Target

AT_ONCE = 64  # nodes that are asked at the same time


def backend_for(target: Target, connect_seconds: int = CONNECT_SECONDS) -> Local | Ssh:
    """OpenSSH's `ssh -F CONFIG NODE` is what a target carries; fabric reads the same file."""
    return Ssh(target.node, target.via[2], connect_seconds) if target.via else Local()


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a program in train/ printed on a node, or why there is nothing."""

    node: str
    value: dict[str, Any] | None
    problem: str = ""


def ask_all(
    targets: Iterable[Target],
    command: Callable[[Target], tuple[str, ...]],
    *,
    seconds: float,
    connect_seconds: int = CONNECT_SECONDS,
) -> list[Said]:
    """Run a program that prints one JSON object on all nodes at once; -> their answers in order."""

    def ask(target: Target) -> Said:
        backend = backend_for(target, connect_seconds)
        try:
            answer = backend.capture(command(target), seconds=seconds)
            if answer.code != 0:
                return Said(node=target.node, value=None, problem=last_line(answer.err))
            return Said(node=target.node, value=dict(json.loads(answer.out)))
        except ExecuteError as error:
            return Said(node=target.node, value=None, problem=error.message)
        except ValueError:
            return Said(node=target.node, value=None, problem="its answer is no JSON")
        finally:
            backend.close()

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return list(pool.map(ask, targets))


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it failed without a word"])[-1]
