"""Download models and data from an S3, which moto serves on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.waiting import wait_until

DOWNLOAD = """
import json, sys
from orchestrator.errors import OrchError
from orchestrator.provisioning import urls
try:
    notes = []
    print(json.dumps([str(urls.download("data", sys.argv[1], notes.append)), notes]))
except OrchError as error:
    print(json.dumps([error.exit_code, error.message, error.hint]))
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the environment of a program that uses a running S3.

    Install s3fs and moto into a folder: their python-dateutil is too old for the extra `k8s` in this environment.
    """
    tmp_path = tmp_path_factory.mktemp("server")
    folder = str(tmp_path_factory.mktemp("s3"))
    packages = ("s3fs>=2024.6", "moto>=5,<6", "flask>=3", "flask-cors>=5")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *packages], check=True)
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secretsecret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "moto.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: "Running on" in (tmp_path / "moto.log").read_text(), "an S3")
        yield environment
    finally:
        server.terminate()
        server.wait()


def run_program(environment: Mapping[str, str], program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "secretsecret" not in process.stdout + process.stderr
    return process.stdout


def test_folder_of_s3_is_downloaded_once_and_checked(s3: dict[str, str]) -> None:
    fill = """
import s3fs
s3 = s3fs.S3FileSystem()
s3.mkdir("bucket")
s3.pipe({"bucket/set/a": b"a" * 1000, "bucket/set/deep/b": b"b", "bucket/other": b"x"})
"""
    run_program(s3, fill)
    path, notes = json.loads(run_program(s3, DOWNLOAD, "s3://bucket/set"))
    copy = Path(path)
    assert sorted(str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()) == ["a", "deep/b"]
    assert notes == ["s3://bucket/set: downloading 2 files"]
    run_program(s3, 'import s3fs; s3fs.S3FileSystem().pipe("bucket/set/a", b"A" * 1000)')
    assert json.loads(run_program(s3, DOWNLOAD, "s3://bucket/set"))[1] == ["s3://bucket/set: downloading 1 file"]
    assert (copy / "a").read_bytes() == b"A" * 1000
    assert json.loads(run_program(s3, DOWNLOAD, "s3://bucket/set"))[1] == []


def test_damaged_object_of_s3_is_found(s3: dict[str, str]) -> None:
    run_program(s3, 'import s3fs; s3 = s3fs.S3FileSystem(); s3.mkdir("damaged"); s3.pipe("damaged/a", b"a" * 1000)')
    damaging = DOWNLOAD.replace(
        "try:",
        "import s3fs\n_read = s3fs.S3File.read\ns3fs.S3File.read = lambda *a: _read(*a).replace(b'aa', b'ab')\ntry:",
        1,
    )
    code, message, _ = json.loads(run_program(s3, damaging, "s3://damaged/a"))
    assert (code, "damaged/a was damaged: its MD5" in message) == (1, True), message
    assert json.loads(run_program(s3, DOWNLOAD, "s3://damaged/a"))[1] == ["s3://damaged/a: downloading 1 file"]
