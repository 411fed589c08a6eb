from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from tests.roles.modules import load_file, load_module

RECEIVER = load_file("roles/stack/files/receive.py")
WHEELS = {"a b.whl": os.urandom(700), "empty.whl": b"", "large.whl": os.urandom(3000)}


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load_file("action_plugins/orch_wheels.py")
    monkeypatch.setattr(module, "PACK_BYTES", 1000)
    return module


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    for name, content in WHEELS.items():
        (folder / name).write_bytes(content)
    return folder


def arrived_bytes(folder: Path) -> dict[str, int]:
    return {wheel["file"]: load_module("orch_wheels").arrived_bytes(str(folder), wheel) for wheel in lock()}


def lock() -> list[dict[str, Any]]:
    return [
        {"file": name, "sha256": hashlib.sha256(content).hexdigest()} for name, content in WHEELS.items() if content
    ]


def messages(sender: ModuleType, source: Path, folder: Path) -> list[bytes]:
    parts = {wheel["file"]: "." + wheel["sha256"] for wheel in lock()}
    return [
        sender.message(str(folder), str(source), pieces, parts)
        for pieces in sender.packs(str(source), arrived_bytes(folder))
    ]


def test_all_wheels_arrive(sender: ModuleType, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    packs = messages(sender, source, folder)
    assert len(packs) == 4
    for pack in packs:
        RECEIVER.main(io.BytesIO(pack))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: content for name, content in WHEELS.items() if content
    }
    assert set(arrived_bytes(folder).values()) == {-1}


def test_transfer_resumes_after_an_interruption(sender: ModuleType, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    first, second, *_ = messages(sender, source, folder)
    RECEIVER.main(io.BytesIO(first))
    with pytest.raises(EOFError, match="is incomplete"):
        RECEIVER.main(io.BytesIO(second[:-600]))
    assert arrived_bytes(folder) == {"a b.whl": -1, "large.whl": 300 + 400}
    for pack in messages(sender, source, folder):
        RECEIVER.main(io.BytesIO(pack))
    assert set(arrived_bytes(folder).values()) == {-1}


def test_pack_can_be_sent_twice(sender: ModuleType, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    first, *following = messages(sender, source, folder)
    RECEIVER.main(io.BytesIO(first))
    for pack in (following[0], following[0], *following[1:], following[-1]):
        RECEIVER.main(io.BytesIO(pack))
    assert set(arrived_bytes(folder).values()) == {-1}


def test_truncated_wheel_is_reported(sender: ModuleType, source: Path) -> None:
    pieces = [{"file": "large.whl", "offset": 2500, "length": 501, "last": True}]
    with pytest.raises(AnsibleActionFail, match=r"large\.whl was truncated"):
        sender.message("/opt/orch/wheels", str(source), pieces, {"large.whl": ".part"})


def test_node_cannot_request_other_files_of_the_controller(sender: ModuleType, source: Path) -> None:
    (source.parent / "private").write_text("key")
    present = {"large.whl": 0, "a b.whl": -7, "../private": 0, "empty.whl": "0", "/etc/passwd": 0}
    assert sender.checked_offsets(present, set(WHEELS)) == {"large.whl": 0}
