"""Send files to this machine as to a node, in pieces that may be interrupted or sent twice."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from orch_node.standalone import receive_files

from tests.roles.modules import load_module

action = load_module("orch_tree", "action_plugins")
module = load_module("orch_tree")
FILES = {"a b.whl": os.urandom(700), "empty.whl": b"", "large.whl": os.urandom(3000)}


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    tree = {"src": str(folder), "dest": "wheels", "hashes": hashes}
    return action.read_sources({"trees": [tree]}, [])


def missing(root: Path, sources: dict[str, Any]) -> dict[str, int]:
    """Return what the module reports as missing."""
    params: dict[str, Any] = {
        "root": str(root),
        "manifest": {path: source.entry for path, source in sources.items()},
        "mirrored": ["wheels"],
        "absent": [],
        "ignored": [],
        "folders": {},
    }
    return {path: module.arrived_bytes(params, path) for path in module.compare(params)["missing"]}


def messages(root: Path, sources: dict[str, Any]) -> list[bytes]:
    offsets = action.checked_offsets(missing(root, sources), sources)
    return [action.message(str(root), pieces, ()) for pieces in action.packs(offsets, sources, 1000)]


def receive(message: bytes) -> dict[str, str]:
    command = receive_files.command(sys.executable)
    done = subprocess.run(command, input=message, capture_output=True, check=True)
    return json.loads(done.stdout)


def content_of(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "wheels").iterdir()}


def test_all_files_arrive_although_packs_are_sent_twice(sources: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "node"
    packs = messages(root, sources)
    assert len(packs) == 4
    first, second, *following = packs
    assert [receive(pack) for pack in (first, second, second, *following, following[-1])] == [{}] * 6
    assert content_of(root) == FILES
    assert {path.stat().st_mode & 0o777 for path in (root / "wheels").iterdir()} == {0o600}
    assert missing(root, sources) == {}


def test_transfer_resumes_after_an_interruption(sources: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "node"
    first, second, *_ = messages(root, sources)
    receive(first)
    assert receive(second[:-600]) == {"": "the transfer was interrupted"}
    assert missing(root, sources) == {"wheels/large.whl": 300 + 400}
    for pack in messages(root, sources):
        assert receive(pack) == {}
    assert content_of(root) == FILES


def test_damaged_file_gets_no_name(sources: dict[str, Any], tmp_path: Path) -> None:
    root = tmp_path / "node"
    first, *_ = messages(root, sources)
    assert receive(first[:-1000] + bytes(1000)) == {"": f"{root}/wheels/a b.whl was damaged in the transfer"}
    assert list((root / "wheels").iterdir()) == []
    for pack in messages(root, sources):
        assert receive(pack) == {}
    assert content_of(root) == FILES


def test_node_cannot_request_other_files_of_the_controller(sources: dict[str, Any]) -> None:
    reported = {"wheels/large.whl": 5, "wheels/a b.whl": -7, "wheels/../private": 0, "/etc/passwd": 0}
    assert action.checked_offsets(reported, sources) == {"wheels/large.whl": 5, "wheels/a b.whl": 0}
