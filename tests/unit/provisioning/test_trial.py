"""Fabrics are tried anew where anything has changed that decides how the trial ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.paths import SHARE
from orchestrator.provisioning import trial

ROLE = "playbooks/roles/fabric"
NODE = "train/lib/orch_node"


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    for part in (ROLE, NODE):
        shutil.copytree(SHARE / part, folder / part)
    shutil.copy(SHARE / "train/node.py", folder / "train")
    return folder


def changes(share: Path, name: str) -> bool:
    """Whether one line more in this file makes another version."""
    before, path = trial.version(share), share / name
    content = path.read_text()
    path.write_text(content + "# another\n")
    after = trial.version(share)
    path.write_text(content)
    assert trial.version(share) == before
    return after != before


@pytest.mark.parametrize(
    "name",
    [
        "train/node.py",
        f"{NODE}/fabric/ping_pong.py",
        f"{NODE}/fabric/prove.py",
        f"{NODE}/verify.py",
        f"{NODE}/protocol/fabrics.py",
        f"{NODE}/protocol/values.py",
        f"{NODE}/standalone/facts.py",
        f"{ROLE}/defaults/main.yml",
        f"{ROLE}/tasks/main.yml",
    ],
)
def test_what_decides_the_answer_is_part_of_the_version(share: Path, name: str) -> None:
    assert changes(share, name)


@pytest.mark.parametrize("name", [f"{NODE}/supervisor/supervisor.py", f"{ROLE}/README.md"])
def test_what_does_not_decide_it_is_not(share: Path, name: str) -> None:
    assert not changes(share, name)
