"""The module that installs a stack, with the real uv and an index that wants a password."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.state import cache_home
from tests.roles.modules import load_module

stack = load_module("orch_stack")
PASSWORD = "not-for-others"
WHEEL = "tiny-1.0-py3-none-any.whl"
PAGE = f'<a href="/{WHEEL}">{WHEEL}</a>'
# In uv's place, it keeps what it was called with.
RECORDER = "#!/bin/sh\nprintf '%s\\n' \"$*\" >> '{log}'\nexec '{uv}' \"$@\"\n"


def make_wheel(folder: Path, text: str) -> str:
    """-> its SHA-256."""
    folder.mkdir()
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": text,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = "".join(f"{name},{row(content)}\n" for name, content in files.items())
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        for name, content in {**files, f"{info}/RECORD": f"{rows}{info}/RECORD,,\n"}.items():
            wheel.writestr(name, content)
    return hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()


def row(content: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=")
    return f"sha256={digest.decode()},{len(content)}"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """-> the URL of an index with another build of the wheel than its name promises."""
    make_wheel(tmp_path / "served", "ORIGIN = 'an index'\n")
    wanted = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != wanted:
                self.send_response(401)
                self.end_headers()
                return
            wheel = self.path.endswith(".whl")
            self.send_response(200)
            self.send_header("Content-Type", "application/zip" if wheel else "text/html")
            self.end_headers()
            self.wfile.write((tmp_path / "served" / WHEEL).read_bytes() if wheel else PAGE.encode())

        def do_HEAD(self) -> None:
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://me:{PASSWORD}@127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    server.server_close()


@pytest.fixture
def uv(tmp_path: Path) -> Path:
    """The real uv behind a script that keeps its arguments; -> the folder of orch on the node."""
    wheels = sorted((cache_home() / "wheelhouses").glob("*/uv-*.whl"))
    if not wheels:
        pytest.skip("no wheelhouse of an earlier provision has uv")
    root = tmp_path / "orch"
    (root / "bin").mkdir(parents=True)
    with zipfile.ZipFile(wheels[-1]) as wheel:
        (name,) = (one for one in wheel.namelist() if one.endswith(".data/scripts/uv"))
        (tmp_path / "uv").write_bytes(wheel.read(name))
    (tmp_path / "uv").chmod(0o755)
    (root / "bin/uv").write_text(RECORDER.format(log=tmp_path / "argv", uv=tmp_path / "uv"))
    (root / "bin/uv").chmod(0o755)
    return root


def environment(root: Path, sha256: str, **changes: Any) -> Any:
    package = {"name": "tiny", "version": "1.0", "file": WHEEL, "sha256": sha256}
    given = {
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
    return stack.Environment({**given, **changes})


def test_an_index_gives_what_the_lock_names_and_its_password_is_no_argument(
    uv: Path, index: str, tmp_path: Path
) -> None:
    sha256 = hashlib.sha256((tmp_path / "served" / WHEEL).read_bytes()).hexdigest()
    made = environment(uv, sha256, index_url=index)
    made.repair(made.compare())
    assert made.compare() == []
    words = (tmp_path / "argv").read_text()
    assert "pip install" in words
    assert PASSWORD not in words
    assert PASSWORD not in "".join(
        path.read_text(errors="replace")
        for path in uv.rglob("*")
        if path.suffix in ("", ".json") and path.is_file() and path.stat().st_size < 1 << 20
    )


def test_another_file_of_the_same_version_is_refused(uv: Path, index: str, tmp_path: Path) -> None:
    sha256 = make_wheel(tmp_path / "locked", "ORIGIN = 'the lock'\n")
    made = environment(uv, sha256, index_url=index)
    with pytest.raises(stack.Failed, match="the index has another file than the lock") as refused:
        made.repair(made.compare())
    assert PASSWORD not in str(refused.value)
    assert not list(Path(made.prefix).rglob("tiny.py"))


def test_what_is_left_of_an_environment_is_replaced(uv: Path, index: str, tmp_path: Path) -> None:
    """Of one whose removal was interrupted: no pyvenv.cfg is there. A link of the site's stays."""
    sha256 = hashlib.sha256((tmp_path / "served" / WHEEL).read_bytes()).hexdigest()
    made = environment(uv, sha256, index_url=index)
    (tmp_path / "disk/lib").mkdir(parents=True)
    (tmp_path / "disk/lib/left").touch()
    Path(made.prefix).parent.mkdir()
    Path(made.prefix).symlink_to(tmp_path / "disk")
    made.repair(made.compare())
    assert made.compare() == []
    assert Path(made.prefix).is_symlink()
    assert not (tmp_path / "disk/lib/left").exists()


def test_sources_are_compiled_and_an_edited_one_is_repaired_with_its_bytecode(uv: Path, tmp_path: Path) -> None:
    sha256 = make_wheel(uv / "wheels", "ORIGIN = 'the lock'\n")
    made = environment(uv, sha256, index=False)
    shutil.copytree(uv / "wheels", tmp_path / "again")
    made.repair(made.compare())
    assert made.compare() == []
    (source,) = Path(made.prefix).rglob("site-packages/tiny.py")
    assert list(source.parent.glob("__pycache__/tiny.*.pyc"))
    source.write_text("ORIGIN = 'an edit'\n")
    assert "an edit" in origin(made)
    shutil.copytree(tmp_path / "again", uv / "wheels", dirs_exist_ok=True)
    assert {name for name, _, _ in made.compare()} == {"tiny"}
    made.repair(made.compare())
    assert made.compare() == []
    assert "the lock" in origin(made)


def origin(made: Any) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [made.python, "-c", "import tiny; print(tiny.ORIGIN)"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
