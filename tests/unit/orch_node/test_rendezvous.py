"""Where the ranks of a run and its torchruns meet: at their own address, and by their own key."""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from orch_node.bound_store import bind_store, is_numeric
from orch_node.rank import listening_sockets
from orch_node.supervisor.torchrun_agent import SignedBackend, signature

from tests.support.ports import free_port

NODE = Path(__file__).parents[3] / "train/node.py"
SECOND = datetime.timedelta(seconds=5)


class Memory:
    """A backend of torch's rendezvous that keeps one state."""

    def __init__(self) -> None:
        self.kept: bytes | None = None

    def get_state(self) -> tuple[bytes, bytes] | None:
        return None if self.kept is None else (self.kept, self.kept)

    def set_state(self, state: bytes, token: object = None) -> tuple[bytes, bytes, bool]:
        accepted = token == self.kept
        self.kept = state if accepted else self.kept
        assert self.kept is not None
        return self.kept, self.kept, accepted


def test_nodes_with_the_key_read_what_they_write() -> None:
    memory = Memory()
    first, second = (SignedBackend(memory, b"key", ValueError) for _ in range(2))
    assert first.get_state() is None
    written = first.set_state(b"state")
    assert written is not None
    assert (written[0], written[2]) == (b"state", True)
    read = second.get_state()
    assert read is not None
    assert read[0] == b"state"
    refused = second.set_state(b"other", b"an old token")
    assert refused is not None
    assert (refused[0], refused[2]) == (b"state", False)


@pytest.mark.parametrize("state", [b"", b"pickle", signature(b"other key", b"pickle") + b"pickle", b"x" * 99])
def test_what_a_stranger_writes_is_not_used(state: bytes) -> None:
    memory = Memory()
    memory.kept = state
    signed = SignedBackend(memory, b"key", ValueError)
    with pytest.raises(ValueError, match="not a node of this run"):
        signed.get_state()
    with pytest.raises(ValueError, match="not a node of this run"):
        signed.set_state(b"mine", b"an old token")


def test_a_run_leaves_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    words = ("--nnodes=1", "--nproc_per_node=1", "--no_python", "--", "true")
    agent = [sys.executable, str(NODE), "torchrun-agent", *words]
    done = subprocess.run(agent, input=b"key", env=os.environ | {"TMPDIR": str(tmp_path)})
    assert done.returncode == 0
    assert not list(tmp_path.iterdir())


def where(port: int) -> list[str]:
    """Local addresses that listen at this port, as the kernel writes them."""
    lines = [*Path("/proc/net/tcp").read_text().splitlines()[1:], *Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    found = [line.split() for line in lines]
    wanted = f":{port:04X}"
    return [one[1].removesuffix(wanted) for one in found if one[3] == "0A" and wanted in one[1]]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("address", "kernel"), [("127.0.0.1", "0100007F"), ("::1", "0" * 24 + "01000000")])
def test_a_store_listens_at_its_address_alone(address: str, kernel: str) -> None:
    distributed = pytest.importorskip("torch.distributed")
    if ":" in address and not has_ipv6():
        pytest.skip("this machine has no ::1")
    make, port = bind_store(distributed.TCPStore), free_port()
    store = make(address, port, 1, True, SECOND, multi_tenant=True)
    assert where(port) == [kernel]
    store.set("name", "value")
    again = make(address, port, 1, True, SECOND, multi_tenant=True)
    assert again.get("name") == b"value", "one process has one store at a port"
    assert make(address, port, 1, False, SECOND).get("name") == b"value"


def test_a_store_says_so_where_torch_cannot_be_told(capfd: pytest.CaptureFixture[str]) -> None:
    class OldStore:
        """As torch had it."""

        def __init__(self, *words: object) -> None:
            self.words = words

    OldStore.__init__.__doc__ = "__init__(self, host_name: str, port: int, world_size: int)"
    assert bind_store(OldStore)("127.0.0.1", 1, 2, True).words == ("127.0.0.1", 1, 2, True)
    assert "port 1 is open on all interfaces" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("host", "number"), [("10.0.0.1", True), ("::1", True), ("fe80::1%eth0", True), ("run-0.run", False), ("", False)]
)
def test_only_a_number_is_surely_ones_own(host: str, number: bool) -> None:
    assert is_numeric(host) == number


def test_a_rank_inherits_no_listening_socket() -> None:
    """As hydra hands its own on: open at exec, under no name."""
    code = (
        "import os, sys; sys.path.append(sys.argv[1])\n"
        "from orch_node.rank.listening_sockets import close_listening\n"
        "close_listening()\n"
        "for one in map(int, sys.argv[2:]):\n"
        "    try: print(bool(os.fstat(one)))\n"
        "    except OSError: print(False)\n"
    )
    left, right = socket.socketpair()
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server, left, right:
        kept = (server.fileno(), left.fileno(), writer)
        library = str(Path(listening_sockets.__file__).parents[2])
        done = subprocess.run(
            [sys.executable, "-c", code, library, *map(str, kept)],
            pass_fds=kept,
            capture_output=True,
            text=True,
            check=True,
        )
    os.close(reader)
    os.close(writer)
    assert done.stdout.split() == ["False", "True", "True"]
