"""Run torchrun on a node, with a rendezvous that accepts only the nodes of the run.

`node.py torchrun-agent ARGUMENTS OF TORCHRUN` reads the run's key from standard input. torch keeps
the state of its c10d rendezvous as a pickle in a TCPStore without authentication, so that anybody
who reaches that port can run code on every node. Here the store listens at one address only, and a
state is used only if it is signed with the key. Everything else is torch's implementation.
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
    """Run torchrun; return 0 if it ends well."""
    key = sys.stdin.buffer.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks inherit standard input
    registry = importlib.import_module(f"{ELASTIC}").rendezvous_handler_registry
    registry.register(RENDEZVOUS, lambda parameters: handler(parameters, key))
    run = importlib.import_module("torch.distributed.run").main
    # By default torchrun leaves a folder in the node's /tmp after each run. What remains of a killed process is deleted
    # with its run.
    with tempfile.TemporaryDirectory(prefix=".torchrun-", dir=os.environ.get("ORCH_RUN_DIR")) as folder:
        run([f"--log_dir={folder}", *argv])
    return 0


def handler(parameters: Any, key: bytes) -> Any:
    """Return torch's rendezvous handler for these parameters, with a signed c10d backend."""
    c10d = importlib.import_module(f"{ELASTIC}.c10d_rendezvous_backend")
    dynamic = importlib.import_module(f"{ELASTIC}.dynamic_rendezvous")
    bound_store.bind_stores(c10d)
    backend, store = c10d.create_backend(parameters)
    failure = importlib.import_module(f"{ELASTIC}.api").RendezvousStateError
    return dynamic.create_handler(store, SignedBackend(backend, key, failure), parameters)


class SignedBackend:
    """A rendezvous backend of torch whose states are signed."""

    name = RENDEZVOUS

    def __init__(self, backend: Any, key: bytes, failure: type[Exception]) -> None:
        """Wrap a backend.

        Args:
            backend: the backend of torch.
            key: signs the states.
            failure: raised for a state without the right signature.
        """
        self.backend = backend
        self.key = key
        self.failure = failure

    def get_state(self) -> State | None:
        """Return the stored state and its token, or None."""
        stored = self.backend.get_state()
        return stored and (self.verify(stored[0]), stored[1])

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Store a state; return the stored one, its token, and whether it is this one."""
        stored = self.backend.set_state(signature(self.key, state) + state, token)
        return stored and (self.verify(stored[0]), *stored[1:])

    def verify(self, signed: bytes) -> bytes:
        """Return the state without its signature; raise `failure` if the signature is wrong."""
        state = signed[SIZE:]
        if not hmac.compare_digest(signed[:SIZE], signature(self.key, state)):
            raise self.failure(
                "a host that is not a node of this run has written to its rendezvous; the data was ignored"
            )
        return state


def signature(key: bytes, state: bytes) -> bytes:
    """Return the signature of a state."""
    return hmac.new(key, state, DIGEST).digest()
