from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.model.platform import Platform
from orchestrator.operations import setup
from orchestrator.provisioning import pip
from orchestrator.provisioning.pip import platform_tags


@pytest.mark.parametrize("caller", ["wheelhouse", "setup"])
def test_pip_in_the_current_folder_is_not_run(caller: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "ran"
    for name in ("pip.py", "runpy.py", "pip/__init__.py", "pip/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    if caller == "wheelhouse":
        pip.run_pip("download", "--help")
    else:
        setup.pip("install", "--help")
    assert not marker.exists()


def test_platform_tags_include_older_versions_of_glibc() -> None:
    tags = list(platform_tags(Platform(python="3.11", machine="x86_64", libc="2.17")))
    assert tags[0] == "manylinux_2_17_x86_64"
    assert {"manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(tags)
    assert "manylinux_2_28_x86_64" not in tags
