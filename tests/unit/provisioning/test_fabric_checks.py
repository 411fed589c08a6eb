from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.files import SHARE
from orchestrator.provisioning.fabric_checks import checks_version

ROLE = "playbooks/roles/fabric"
NODE = "train/lib/orch_node"


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    for part in (ROLE, NODE):
        shutil.copytree(SHARE / part, folder / part)
    shutil.copy(SHARE / "train/node.py", folder / "train")
    return folder


def changes_version(share: Path, name: str) -> bool:
    """Return whether another line in this file changes the version."""
    before, path = checks_version(share), share / name
    content = path.read_text()
    path.write_text(content + "# another\n")
    after = checks_version(share)
    path.write_text(content)
    assert checks_version(share) == before
    return after != before


@pytest.mark.parametrize(
    "name",
    [
        "train/node.py",
        f"{NODE}/fabric/ping_pong.py",
        f"{NODE}/fabric/check.py",
        f"{NODE}/verify.py",
        f"{NODE}/protocol/fabrics.py",
        f"{NODE}/protocol/values.py",
        f"{NODE}/standalone/facts.py",
        f"{ROLE}/defaults/main.yml",
        f"{ROLE}/tasks/main.yml",
    ],
)
def test_version_depends_on_everything_that_decides_the_results(share: Path, name: str) -> None:
    assert changes_version(share, name)


@pytest.mark.parametrize("name", [f"{NODE}/supervisor/supervisor.py", f"{ROLE}/README.md"])
def test_version_does_not_depend_on_other_files(share: Path, name: str) -> None:
    assert not changes_version(share, name)
