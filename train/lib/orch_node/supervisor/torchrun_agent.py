"""torchrun of one node, with a rendezvous that obeys nobody but the run's own nodes.

`node.py torchrun-agent ARGUMENTS OF TORCHRUN`; the run's key comes on standard input. torch keeps
the state of its c10d rendezvous as a pickle in a TCPStore, which asks nobody who he is: whoever
reached that port had each node run what he liked. Here the store listens at its own address alone,
and a state counts only if it is signed with the key. The rest is torch's own.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import os
import sys
import tempfile
from typing import Any

from orch_node import bound_store

RENDEZVOUS = "orch"
DIGEST = hashlib.sha256
SIZE = DIGEST().digest_size
ELASTIC = "torch.distributed.elastic.rendezvous"
State = tuple[bytes, Any]


def main(argv: list[str]) -> int:
    key = sys.stdin.buffer.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks inherit it
    registry = importlib.import_module(f"{ELASTIC}").rendezvous_handler_registry
    registry.register(RENDEZVOUS, lambda parameters: handler(parameters, key))
    run = importlib.import_module("torch.distributed.run").main
    # Else each run leaves a folder of torchrun's own in the node's /tmp, for good.
    with tempfile.TemporaryDirectory(prefix="orch-torchrun-") as folder:
        run([f"--log_dir={folder}", *argv])
    return 0


def handler(parameters: Any, key: bytes) -> Any:
    """A handler of torch's for these parameters, as its own backend c10d makes one."""
    c10d = importlib.import_module(f"{ELASTIC}.c10d_rendezvous_backend")
    dynamic = importlib.import_module(f"{ELASTIC}.dynamic_rendezvous")
    bound_store.bind_stores(c10d)
    backend, store = c10d.create_backend(parameters)
    failure = importlib.import_module(f"{ELASTIC}.api").RendezvousStateError
    return dynamic.create_handler(store, Signed(backend, key, failure), parameters)


class Signed:
    """A backend of torch's whose states are signed. `failure`: raised for one that is not."""

    name = RENDEZVOUS

    def __init__(self, backend: Any, key: bytes, failure: type[Exception]) -> None:
        self.backend = backend
        self.key = key
        self.failure = failure

    def get_state(self) -> State | None:
        found = self.backend.get_state()
        return found and (self.opened(found[0]), found[1])

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        found = self.backend.set_state(signature(self.key, state) + state, token)
        return found and (self.opened(found[0]), *found[1:])

    def opened(self, signed: bytes) -> bytes:
        state = signed[SIZE:]
        if not hmac.compare_digest(signed[:SIZE], signature(self.key, state)):
            raise self.failure(
                "somebody who is not a node of this run has written into its rendezvous; nothing of it was used"
            )
        return state


def signature(key: bytes, state: bytes) -> bytes:
    return hmac.new(key, state, DIGEST).digest()
