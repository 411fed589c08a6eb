"""Bring models and data to two hosts with `orch sync`, and use them there without network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.runs import expect_exit
from tests.local.workspaces import Workspace, make_hosts
from tests.support.files import write_files
from tests.support.hub_server import Hub, Repository

GLOO = ("--backend", "gloo", "--project", "none")
COMMIT = "b" * 40
URL_PATH = "/datasets/me/rows/resolve/main/train.jsonl"
ROWS = b"".join(b'{"text": "row %d"}\n' % number for number in range(7))
USE_BY_NAME = """
from datasets import load_dataset
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained("me/tiny")
tokens = AutoTokenizer.from_pretrained("me/tiny")("a word")["input_ids"]
rows = load_dataset("me/rows", split="train")
print("RESULT", model.config.hidden_size, len(tokens) > 2, len(rows), rows[6]["text"], flush=True)
"""
PRINT_VARIABLES = """
import os
print("CACHE", os.environ.get("HF_HUB_CACHE"), os.environ.get("HF_HUB_OFFLINE"), flush=True)
print("DATA", open(os.environ["ORCH_DATA"] + "/words").read(), flush=True)
"""


@pytest.fixture(scope="module")
def hub(qa_model: Path) -> Iterator[Hub]:
    model = {path.name: path.read_bytes() for path in qa_model.iterdir() if path.is_file()}
    repositories = [
        Repository("models", "me/tiny", model, commit=COMMIT),
        Repository("datasets", "me/rows", {"train.jsonl": ROWS, "{{ 1 + 1 }}.txt": b"x"}, commit=COMMIT),
    ]
    with Hub(repositories) as server:
        yield server


@pytest.fixture(scope="module")
def controller(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    hosts = make_hosts(tmp_path_factory.mktemp("sync"), "--ppn", "1")
    with hosts as workspace, pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_ENDPOINT", hub.url)
        environment.setenv("HF_HOME", str(workspace.folder / "hf"))
        environment.delenv("HF_HUB_OFFLINE", raising=False)
        yield workspace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of data."""
    folder = tmp_path_factory.mktemp("data") / "set"
    return write_files(folder, dict.fromkeys(("a", "b", "raw/c", ".gitignore"), "raw/\n"))


@pytest.fixture(scope="module")
def sources(hub: Hub, folder: Path) -> tuple[str, ...]:
    """Return the options for a model and a data set of the hub, and for a file, a folder and a URL."""
    (folder.parent / "words").write_text("ten words")
    data = ("me/rows", folder.parent / "words", folder, f"{hub.url}{URL_PATH}")
    models = ("--model", "me/tiny", "--model", str(folder))
    return (*models, *(word for source in data for word in ("--data", str(source))))


@pytest.fixture(scope="module")
def synced(controller: Workspace, sources: tuple[str, ...]) -> str:
    """Copy the sources to both hosts, and return the output of `orch sync`."""
    return sync(controller, *sources)


def sync(workspace: Workspace, *arguments: str, code: int = 0) -> str:
    return expect_exit(workspace.orch("sync", workspace.options[-1], *arguments), code).stdout


def roots(workspace: Workspace) -> list[Path]:
    return [host.folder / "root" for host in workspace.lab.hosts]


def test_synced_names_are_found_offline(controller: Workspace, hub: Hub, sources: tuple[str, ...], synced: str) -> None:
    root = controller.lab.root
    assert f"model me/tiny at {COMMIT[:12]}: " in synced
    assert f"  on the nodes: {root}/hub/models--me--tiny/snapshots/{COMMIT}\n" in synced
    assert '  in a script:  load_dataset("me/rows")\n' in synced
    downloads = hub.downloads()
    assert downloads.count("train.jsonl") == 2, "one download for two nodes, and one of the URL"
    repeated = json.loads(sync(controller, *sources, "--json"))
    assert hub.downloads() == downloads
    assert [node["changes"] for node in repeated["nodes"]] == [[], []]
    assert [source["files"] for source in repeated["synced"]][2] == 2
    cell = controller.train_text(USE_BY_NAME + PRINT_VARIABLES, *GLOO, "--nodes", "node1")
    assert cell.printed("RESULT", 0) == "32 True 7 row 6"
    assert cell.printed("CACHE", 0) == f"{root}/hub 1"
    assert cell.printed("DATA", 0) == "ten words"


@pytest.mark.usefixtures("synced")
def test_variables_of_the_user_replace_those_of_data_and_caches(controller: Workspace, tmp_path: Path) -> None:
    other_data = f"ORCH_DATA={controller.lab.root}/data/."
    options = ("--nodes", "node1", "--env", f"HF_HOME={tmp_path}", "--env", other_data)
    cell = controller.train_text(PRINT_VARIABLES, *GLOO, *options)
    assert (cell.printed("CACHE", 0), cell.printed("DATA", 0)) == ("None None", "ten words")
    command = controller.orch("exec", controller.options[-1], "--", "printenv", "HF_HUB_CACHE")
    assert command.stdout.count(f"{controller.lab.root}/hub") == 2, command.stdout + command.stderr


def test_urls_are_copied_and_removed_files_deleted(controller: Workspace, hub: Hub, folder: Path, synced: str) -> None:
    assert f"data {folder}: 0.0 MB, 3 files\n  on the nodes: {controller.lab.root}/data/set\n" in synced
    in_url = f"data {hub.url}{URL_PATH}: 0.0 MB, 1 file\n  on the nodes: {controller.lab.root}/data/train.jsonl\n"
    assert in_url in synced
    assert """  in a script:  os.environ["ORCH_DATA"] + "/words"\n""" in synced
    for root in roots(controller):
        assert sorted(path.name for path in (root / "models/set").iterdir()) == [".gitignore", "a", "b"]
        assert (root / "data/train.jsonl").read_bytes() == ROWS
        assert (root / "data/train.jsonl").stat().st_mode & 0o777 == 0o600
    (folder / "b").unlink()
    sync(controller, "--data", str(folder))
    assert [(root / "data/set/b").exists() for root in roots(controller)] == [False, False]


def test_wrong_sources_change_no_node(controller: Workspace) -> None:
    for arguments, code, message in (
        (("--model", "me/none"), 2, "Repository Not Found"),
        (("--data", "http://127.0.0.1:1/rows"), 1, "cannot be downloaded"),
    ):
        process = expect_exit(controller.orch("sync", controller.options[-1], *arguments), code)
        assert message in process.stderr
        assert "hint:" in process.stderr
        assert "lock:" not in process.stderr
