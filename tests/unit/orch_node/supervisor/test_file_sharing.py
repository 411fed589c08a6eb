"""Send node0's files to nodes that share no folder with it, in mount namespaces of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from orch_node import program
from orch_node.reach import BY_STEP
from orch_node.supervisor import file_sharing
from orch_node.supervisor.file_sharing import FileSharing

from tests.support.files import write_files, write_program
from tests.support.hosts import missing_requirements

pytestmark = pytest.mark.skipif(bool(missing_requirements()), reason=missing_requirements() or "runs here")

PROJECT = {"train.py": "print()", "conf/a b.json": "{}", "data.txt": "data"}
RUN_ON_NODE = 'echo orch:program-output; test "$1" = shared || mount --bind "$2/$1" "$2/run"; shift 2; exec "$@"'


class Nodes:
    """A run on node0, whose folder is `run`, and on other nodes, which see their own folder in its place."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        write_files(folder / "store" / "0123", PROJECT)
        for name in ("run", *names):
            shutil.copytree(folder / "store" / "0123", folder / name / "project")
            (folder / name / "project.txt").write_text(str(folder / "store" / "0123"))
        (self.run_dir / "supervisor.json").write_text("{}")

    def share(self, *nodes: str, attempt: int = 1, problem: str = "") -> list[str]:
        """Return what was sent, unless there is another problem than this one."""
        sharing = FileSharing(self.run_dir, nodes, attempt)
        assert problem in (result := sharing.run())
        assert bool(problem) == bool(result)
        return sharing.news

    def content(self, node: str) -> dict[str, str]:
        """Return the texts of the files of a node's copy of the project."""
        copy = self.folder / node / "project"
        return {str(path.relative_to(copy)): path.read_text() for path in copy.rglob("*") if path.is_file()}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setenv(BY_STEP, f"unshare -m sh -euc '{RUN_ON_NODE}' sh {{node}} {tmp_path}")
    return Nodes(tmp_path, "node1", "node2")


def test_what_a_node_has_written_again_replaces_what_node0_took_from_it(nodes: Nodes) -> None:
    for attempt in (1, 2):
        from_node0 = dict.fromkeys(("ck/.metadata", "ck/__0_0.distcp"), str(attempt))
        from_node1 = {"ck/__1_0.distcp": str(attempt)}
        write_files(nodes.run_dir / "project", from_node0)
        write_files(nodes.folder / "node1/project", from_node1)
        nodes.share("node1", "node2", attempt=attempt)
        for node in ("run", "node1", "node2"):
            assert nodes.content(node) == {**PROJECT, **from_node0, **from_node1}


def test_files_of_a_node_that_leaves_are_taken(nodes: Nodes) -> None:
    write_files(nodes.run_dir / "project", {"ck/.metadata": "1"})
    write_files(nodes.folder / "node1/project", {"ck/__1_0.distcp": "1"})
    sharing = FileSharing(nodes.run_dir, [], 1, ["node1", "gone"])
    assert sharing.run() == ""
    assert nodes.content("run") == {**PROJECT, "ck/.metadata": "1", "ck/__1_0.distcp": "1"}
    assert any("without the files that only gone has" in line for line in sharing.news)


def test_nodes_get_what_node0_wrote(nodes: Nodes) -> None:
    written = {"out/checkpoint-20/model.pt": "weights", "-rf": "option", "data.txt": "changed", "n\n": "", ".x": ""}
    write_files(nodes.run_dir / "project", {**written, "__pycache__/train.pyc": "bytecode"})
    (nodes.run_dir / "project/out/latest").symlink_to("checkpoint-20")
    write_program(nodes.run_dir / "project/tool.sh", "")
    os.mkfifo(nodes.run_dir / "project/pipe")
    write_files(nodes.folder / "node1/project", {"out/rng_1.pth": "of rank 1", "out/checkpoint-20/model.pt": "weights"})
    news = nodes.share("node1", "node2")
    expected = {**PROJECT, **written, "tool.sh": "", "out/rng_1.pth": "of rank 1"}
    assert nodes.content("node1") == nodes.content("node2") == expected, "also what only node1 had"
    assert (nodes.run_dir / "project/out/rng_1.pth").read_text() == "of rank 1"
    assert any(line.startswith("took 1 file (out/rng_1.pth)") for line in news)
    for node in ("node1", "node2"):
        copy = nodes.folder / node / "project"
        assert (copy / "out/latest").readlink() == Path("checkpoint-20")
        assert os.access(copy / "tool.sh", os.X_OK)
        assert (copy / "data.txt").stat().st_mtime == (nodes.run_dir / "project/data.txt").stat().st_mtime
    assert len(news) == 3  # node1 needs other files than node2
    assert all("limit 100 GB" in line for line in news)
    assert nodes.share("node1", "node2") == []


def test_other_contents_of_a_node_are_kept_beside_and_named(nodes: Nodes) -> None:
    write_files(nodes.run_dir / "project", {"log": "node0", "folder": "file"})
    write_files(nodes.folder / "node1/project", {"log": "node1", "data.txt": "node1", "folder/x": "node1"})
    news = nodes.share("node1")
    assert nodes.content("node1") == {
        **PROJECT,
        "log": "node0",
        "log.node1.attempt-1": "node1",
        "data.txt": "node1",
        "folder": "file",
        "folder.node1.attempt-1/x": "node1",
    }
    assert "log.node1.attempt-1" in news[-1]
    write_files(nodes.run_dir / "project", {"log": "node0 again"})
    assert "had written" not in str(nodes.share("node1", attempt=2))
    assert nodes.content("node1")["log"] == "node0 again"


def test_what_node0_has_deleted_is_deleted(nodes: Nodes) -> None:
    write_files(nodes.run_dir / "project", {"checkpoint-1": "old", "mine": "old"})
    nodes.share("node1")
    for name in ("checkpoint-1", "mine", "data.txt", "train.py"):
        (nodes.run_dir / "project" / name).unlink()
    write_files(nodes.folder / "node1/project", {"mine": "changed", "train.py": "changed"})
    nodes.share("node1", attempt=2)
    content = nodes.content("node1")
    assert content == {"conf/a b.json": "{}", "mine": "changed", "train.py.node1.attempt-2": "changed"}


def test_supervisor_can_read_the_names_of_files_that_are_not_utf8(nodes: Nodes) -> None:
    write_files(nodes.run_dir / "project", {os.fsdecode(b"\xff.log"): "text"})
    command = program.command("share-files", str(nodes.run_dir), "1", "node1")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(r"gave 1 file (\udcff.log)")


@pytest.mark.parametrize("text", ["data", "sent later"], ids=["restored", "sent again"])
def test_file_that_node0_has_again_as_it_was_sent_stays(nodes: Nodes, text: str) -> None:
    write_files(nodes.run_dir / "project", {"data.txt": "changed"})
    nodes.share("node1")
    write_files(nodes.run_dir / "project", {"data.txt": text, "new": ""})
    if text != PROJECT["data.txt"]:  # `orch resume --code` has replaced it on all nodes
        write_files(nodes.folder / "node1/project", {"data.txt": text})
        write_files(nodes.folder / "store/0123", {"data.txt": text})
    nodes.share("node1", attempt=2)
    assert nodes.content("node1") == {**PROJECT, "data.txt": text, "new": ""}


def test_nothing_is_copied_in_a_shared_folder(nodes: Nodes) -> None:
    write_files(nodes.run_dir / "project", {"out/model.pt": "weights"})
    assert nodes.share("shared") == []
    assert not (nodes.run_dir / "received.json").exists()


def test_unreachable_nodes_and_too_large_files_are_problems(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(nodes.run_dir / "project", {"model.pt": "weights"})
    nodes.share("nowhere", problem="nowhere: ")
    monkeypatch.setattr(file_sharing, "MAX_BYTES", 3)
    nodes.share("node1", problem="is too much")
    assert "model.pt" not in nodes.content("node1")


def test_all_files_count_as_written_if_the_store_has_been_cleaned(nodes: Nodes) -> None:
    shutil.rmtree(nodes.folder / "store")
    write_files(nodes.run_dir / "project", {"data.txt": "changed"})
    nodes.share("node1")
    assert nodes.content("node1")["data.txt"] == "changed"
