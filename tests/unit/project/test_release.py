"""Releases: the changelog, the contents of the wheel, and the signature, which the commands of a page verify."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from orchestrator.files import tomllib
from orchestrator.provisioning.bindings_wheel import sources
from release.__main__ import NAMESPACE, SUMS, sign

CHECKOUT = Path(__file__).parents[3]
PAGE = CHECKOUT / "docs" / "explanation" / "security.md"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


def test_wheel_contains_all_sources_of_the_bindings() -> None:
    """orch from a wheel without them would build the bindings again, because their digest differs."""
    included = {Path(name) for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]}
    paths = [path.relative_to(CHECKOUT) for path in sources(CHECKOUT / "bindings")]
    assert len(paths) > 20
    assert [path for path in paths if not included & {path, *path.parents}] == []


def verify(folder: Path, signers: Path) -> int:
    """Run the page's commands and return their exit code."""
    section = PAGE.read_text().partition("## Verify a release")[2]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    commands = block[1].replace("orch/release/allowed_signers", str(signers))
    return subprocess.run(["bash", "-ec", commands], cwd=folder, capture_output=True).returncode


def test_commands_of_the_page_accept_only_an_unchanged_release_of_a_listed_key(tmp_path: Path) -> None:
    folder, key, signers, nobody = (tmp_path / name for name in ("release", "key", "allowed_signers", "nobody"))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signers.write_text(f'alice@example.org namespaces="{NAMESPACE}" {key.with_suffix(".pub").read_text()}')
    folder.mkdir()
    (folder / "orch.whl").write_text("wheel")
    sums = subprocess.run(["sha256sum", "orch.whl"], cwd=folder, capture_output=True, check=True)
    (folder / SUMS).write_bytes(sums.stdout)
    sign(folder / SUMS, key, signers)
    assert verify(folder, signers) == 0
    for name in ("orch.whl", SUMS, f"{SUMS}.sig"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(bytes([data[0] ^ 1]) + data[1:])
        assert verify(folder, signers) != 0, name
        (folder / name).write_bytes(data)
    nobody.write_text("")
    assert verify(folder, nobody) != 0
    with pytest.raises(subprocess.CalledProcessError):
        sign(folder / SUMS, key, nobody)
