"""Downloads of the real client from a hub on this machine.

Each is a new process, because the client reads its settings once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_server import Hub, Repository
from tests.support.ports import free_port

COMMIT, TOKEN = "c" * 40, "hf_secretsecret"
LARGE = os.urandom(1 << 20) * 24
PROGRAM = """
import json, sys
from orchestrator.errors import OrchError
from orchestrator.provisioning.sources import find_sources
for kind, text in zip(sys.argv[1::2], sys.argv[2::2]):
    notes = []
    try:
        (source,) = find_sources(*(([text], []) if kind == "model" else ([], [text])), notes.append)
        print(json.dumps({"path": source.synced.path, "files": source.synced.files, "size": source.synced.size,
                          "folder": str(source.folder), "references": sorted(source.references), "notes": notes}))
    except OrchError as error:
        print(json.dumps({"code": error.exit_code, "message": error.message, "hint": error.hint}))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    repositories = [
        Repository("models", "me/tiny", {"config.json": b"{}", "model.safetensors": LARGE}, commit=COMMIT),
        Repository("models", "me/gated", {"config.json": b"{}"}, commit=COMMIT, token=TOKEN),
        Repository("datasets", "rows", {"train.jsonl": b'{"a": 1}\n'}, commit=COMMIT, branch="v1"),
    ]
    with Hub(repositories) as server:
        yield server


def download_all(folder: Path, names: list[str], endpoint: str, **variables: str) -> list[dict[str, object]]:
    """Return the results of downloads, named by their kinds and texts, in one new process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), **variables}
    done = subprocess.run([sys.executable, "-c", PROGRAM, *names], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def download(folder: Path, kind: str, text: str, endpoint: str, **variables: str) -> dict[str, object]:
    (result,) = download_all(folder, [kind, text], endpoint, **variables)
    return result


def test_interrupted_download_continues_and_is_not_repeated(hub: Hub, tmp_path: Path) -> None:
    hub.cut["model.safetensors"] = 15 << 20
    result, repeated = download_all(tmp_path, ["model", "me/tiny"] * 2, hub.url)
    storage = "hub/models--me--tiny"
    assert (result["path"], result["files"]) == (f"{storage}/snapshots/{COMMIT}", 2)
    assert result["size"] == repeated["size"] == len(LARGE) + 2
    assert f"{storage}/refs/main" in result["references"]  # type: ignore[operator]
    first, second = hub.ranges("model.safetensors")
    assert (first, second.startswith("bytes=1")) == ("", True), "the part that was received is not sent again"
    assert Path(str(result["folder"]), "model.safetensors").read_bytes() == LARGE
    result = download(tmp_path, "model", "me/tiny", f"http://127.0.0.1:{free_port()}")
    assert result["files"] == 2
    assert "taking what was downloaded before" in str(result["notes"])


def test_damaged_file_of_the_cache_is_found(hub: Hub, tmp_path: Path) -> None:
    """Damage one file after the other; the next download replaces one that was deleted."""
    folder = Path(str(download(tmp_path, "model", "me/tiny", hub.url)["folder"]))
    for name in ("model.safetensors", "config.json"):
        content = (folder / name).resolve()
        content.write_bytes(content.read_bytes()[::-1])
        error = download(tmp_path, "model", "me/tiny", hub.url)
        assert f"{name} is damaged" in str(error["message"])
        assert f"Delete {content}" in str(error["hint"])
        content.unlink()
    assert (folder / "model.safetensors").read_bytes() == LARGE


def test_data_set_of_a_revision_and_a_gated_model_with_the_token_of_the_environment(hub: Hub, tmp_path: Path) -> None:
    rows, gated = download_all(tmp_path, ["data", "rows@v1", "model", "me/gated"], hub.url, HF_TOKEN=TOKEN)
    assert "hub/datasets--rows/refs/v1" in rows["references"]  # type: ignore[operator]
    assert gated["files"] == 1


def test_wrong_names_and_a_wrong_token_are_explained(hub: Hub, tmp_path: Path) -> None:
    messages = {
        "model me/none": "Repository Not Found for url",
        "data none": "Repository Not Found for url",
        "model me/gated": "gated",
        "model me/tiny@v9": "Revision Not Found",
        "data rows": "Revision Not Found",
        "model -x": "Repo id must use",
    }
    errors = download_all(tmp_path, " ".join(messages).split(), hub.url, HF_TOKEN="hf_wrong")
    assert "hf_wrong" not in str(errors)
    for message, error in zip(messages.values(), errors, strict=True):
        assert (error["code"], message in str(error["message"]), bool(error["hint"])) == (2, True, True), error
