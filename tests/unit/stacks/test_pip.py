"""How pip is started: not from the current folder, and without passwords in its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.operations import setup, wheels
from orchestrator.provisioning import pip, wheelhouse
from orchestrator.stacks.downloads import Download


@pytest.mark.parametrize("who", ["wheelhouse", "setup", "fetch"])
def test_a_pip_of_the_current_folder_is_not_run(who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "ran"
    for name in ("pip.py", "runpy.py", "pip/__init__.py", "pip/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    if who == "wheelhouse":
        wheelhouse.pip(tmp_path, ["--help"])
    elif who == "setup":
        setup.pip("install", "--help")
    else:
        download = Download(wanted=("--help",), index=None, arguments=())
        wheels.run_pip(load.stack("current"), download, ())
    assert not mark.exists()


def test_a_password_is_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/mine")
    secret, plain = "https://me:secret@example.com/simple", "--index-url=https://example.com"
    kept, variables = pip.without_passwords(
        ["download", plain, f"--extra-index-url={secret}", f"--find-links={secret}", "torch"]
    )
    assert kept == ["download", plain, "torch"]
    assert variables == {"PIP_EXTRA_INDEX_URL": secret, "PIP_FIND_LINKS": f"/mine {secret}"}
