"""The module orch_stack, with uv and an index that requires a password."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.files import cache_home, sha256
from tests.roles.modules import load_module
from tests.support.files import write_program
from tests.support.http_server import QuietHandler, serve_folder
from tests.support.wheels import make_wheel

stack = load_module("orch_stack")
PASSWORD = "not-for-others"
WHEEL = "tiny-1.0-py3-none-any.whl"
# A wrapper of uv that records its arguments.
RECORDER = "#!/bin/sh\nprintf '%s\\n' \"$*\" >> '{log}'\nexec '{uv}' \"$@\"\n"


def make_tiny(folder: Path, text: str) -> str:
    """Write a wheel of a module with this text, and return its SHA-256."""
    return sha256(make_wheel(folder, "tiny", "1.0", module=text))


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an index whose wheel has another content than the locked one."""
    (tmp_path / "served/simple").mkdir(parents=True)
    make_tiny(tmp_path / "served/simple/tiny", "ORIGIN = 'an index'\n")
    authorization = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") == authorization:
                super().do_GET()
            else:
                self.send_error(401)

        def do_HEAD(self) -> None:
            self.send_error(405)

    with serve_folder(tmp_path / "served", Handler) as url:
        yield url.replace("//", f"//me:{PASSWORD}@") + "/simple"


@pytest.fixture
def uv(tmp_path: Path) -> Path:
    """Return the folder of orch on the node, with uv behind a wrapper that records its arguments."""
    wheels = sorted((cache_home() / "wheelhouses").glob("*/uv-*.whl"))
    if not wheels:
        pytest.skip("no wheelhouse of an earlier provision has uv")
    root = tmp_path / "orch"
    with zipfile.ZipFile(wheels[-1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))
        (tmp_path / "uv").write_bytes(wheel.read(name))
    (tmp_path / "uv").chmod(0o755)
    write_program(root / "bin/uv", RECORDER.format(log=tmp_path / "argv", uv=tmp_path / "uv"))
    return root


def make_environment(root: Path, digest: str, **changes: Any) -> Any:
    package = {"name": "tiny", "version": "1.0", "file": WHEEL, "sha256": digest}
    params = {
        "root": str(root),
        "stack": "test",
        "lock": [package],
        "python": sys.executable,
        "uv": {"file": "uv.whl", "sha256": "0"},
        "own": [],
        "index": True,
        "index_url": "",
        "index_options": [],
    }
    return stack.Environment({**params, **changes})


def test_incomplete_environment_is_replaced_with_no_password_in_argv(uv: Path, index: str, tmp_path: Path) -> None:
    # Without pyvenv.cfg, as after an interrupted removal. The link to another disk is kept.
    env = make_environment(uv, sha256(tmp_path / "served/simple/tiny" / WHEEL), index_url=index)
    (tmp_path / "disk/lib").mkdir(parents=True)
    (tmp_path / "disk/lib/left").touch()
    Path(env.prefix).parent.mkdir()
    Path(env.prefix).symlink_to(tmp_path / "disk")
    env.repair(env.compare())
    assert env.compare() == []
    assert Path(env.prefix).is_symlink()
    assert not (tmp_path / "disk/lib/left").exists()
    arguments = (tmp_path / "argv").read_text()
    assert "pip install" in arguments
    assert PASSWORD not in arguments
    assert PASSWORD not in "".join(
        path.read_text(errors="replace")
        for path in uv.rglob("*")
        if path.suffix in ("", ".json") and path.is_file() and path.stat().st_size < 1 << 20
    )


def test_file_with_another_hash_is_rejected(uv: Path, index: str, tmp_path: Path) -> None:
    digest = make_tiny(tmp_path / "locked", "ORIGIN = 'the lock'\n")
    env = make_environment(uv, digest, index_url=index)
    with pytest.raises(stack.InstallError, match="the index has another file than the lock") as error:
        env.repair(env.compare())
    assert PASSWORD not in str(error.value)
    assert not list(Path(env.prefix).rglob("tiny.py"))


def test_sources_are_compiled_and_an_edited_one_is_repaired_with_its_bytecode(uv: Path, tmp_path: Path) -> None:
    digest = make_tiny(uv / "wheels", "ORIGIN = 'the lock'\n")
    env = make_environment(uv, digest, index=False)
    shutil.copytree(uv / "wheels", tmp_path / "again")
    env.repair(env.compare())
    assert env.compare() == []
    (source,) = Path(env.prefix).rglob("site-packages/tiny.py")
    assert list(source.parent.glob("__pycache__/tiny.*.pyc"))
    source.write_text("ORIGIN = 'an edit'\n")
    assert "an edit" in origin(env)
    shutil.copytree(tmp_path / "again", uv / "wheels", dirs_exist_ok=True)
    assert {name for name, _, _ in env.compare()} == {"tiny"}
    env.repair(env.compare())
    assert env.compare() == []
    assert "the lock" in origin(env)


def origin(env: Any) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [env.python, "-c", "import tiny; print(tiny.ORIGIN)"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Return the site-packages of an environment with one installed package."""
    site = tmp_path / "orch/stacks/test/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    make_tiny(tmp_path / "wheel", "\n")
    with zipfile.ZipFile(tmp_path / "wheel" / WHEEL) as wheel:
        wheel.extractall(site)
    python = tmp_path / "orch/stacks/test/bin/python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    for name in ("_virtualenv.py", "_virtualenv.pth"):
        (site / name).touch()
    (site / "__pycache__").mkdir()
    return site


def test_files_that_belong_to_no_package_are_drift(bare: Path, tmp_path: Path) -> None:
    env = make_environment(tmp_path / "orch", "0")
    assert env.compare() == []
    (bare / "copied").mkdir()
    (bare / "copied/__init__.py").touch()
    (bare / "single.py").touch()
    (bare / "link.py").symlink_to(bare / "tiny.py")
    (bare / "test/nothing").mkdir(parents=True)  # an empty folder is left of a package without its tests
    wrong = env.compare()
    names = ["copied", "link.py", "single.py"]
    assert wrong == [(f"site-packages/{name}", "of no package", "absent") for name in names]
    env.remove_strays()
    assert env.compare() == []
    assert (bare / "tiny.py").exists()
    shutil.rmtree(bare / "tiny-1.0.dist-info")
    wrong = env.compare()
    assert ("tiny", "missing", "1.0") in wrong
    assert ("site-packages/tiny.py", "of no package", "absent") in wrong


def test_unchanged_files_are_not_hashed_again_also_outside_site_packages(bare: Path, tmp_path: Path) -> None:
    env = make_environment(tmp_path / "orch", "0")
    (Path(env.prefix) / "bin/tool").touch()
    with (bare / "tiny-1.0.dist-info/RECORD").open("a") as record:
        record.write("../../../bin/tool,sha256=0,0\n")
    env.write_snapshot()
    assert env.altered(env.installed(), lambda *_: False) == {}
    (Path(env.prefix) / "bin/tool").write_text("x")
    assert env.altered(env.installed(), lambda *_: False) == {"tiny": "../../../bin/tool was altered"}
