"""Steps on several nodes at once, and a project that comes back as it was sent, from a host that is not trusted."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from orch_node import content_store
from orch_node.protocol.record import RunNode

from orchestrator.errors import ConnectionLost, ExecuteError, RequestError
from orchestrator.load.projects import project_of
from orchestrator.model.project import Imports, Project
from orchestrator.model.recipe import Recipe
from orchestrator.planning.plan import CheckImports, PutFile, RunProgram, SendFile
from orchestrator.runs.fetch import FetchListener, Source
from orchestrator.targets.connections.local import Local
from orchestrator.targets.execute import MAX_PARALLEL_NODES, execute, on_all, store
from orchestrator.targets.fetch import fetch_project
from orchestrator.targets.interface import FetchRequest
from tests.support.files import write_files
from tests.support.plans import make_store_step

NODES = (RunNode(node="n0"),)
IMPORTS = Imports(importers={}, source="stack current")


def test_failed_step_names_the_node_or_the_file() -> None:
    for step, message in (
        (RunProgram(nodes=NODES, command=("false",)), "n0: exit code 1."),
        (CheckImports(nodes=NODES, command=("sh", "-c", "exit 2"), imports=IMPORTS), "the imports: exit code 2."),
        (SendFile(nodes=NODES, source="/no/such", path="/tmp/x"), "/no/such: No such file or directory."),
        (PutFile(path="/dev/null/x", content=""), "/dev/null: "),
    ):
        with pytest.raises(ExecuteError) as exc_info:
            execute([step], {"n0": Local()})
        assert message in exc_info.value.message


def test_program_with_unreadable_input_is_not_called_missing() -> None:
    with pytest.raises(FileNotFoundError):
        Local().capture(("true",), seconds=60, source=Path("/no/such"))
    with pytest.raises(ExecuteError, match="/no/such cannot be started"):
        Local().capture(("/no/such",), seconds=60, source=Path(__file__))


@pytest.mark.parametrize("reachable", [[], ["n31"]], ids=["none", "one"])
def test_nodes_are_left_out_if_none_of_the_first_ones_can_be_reached(reachable: list[str]) -> None:
    """Save the minutes that a thousand nodes behind a closed VPN would take, 64 at a time."""
    nodes = tuple(RunNode(node=f"n{index}") for index in range(1000))
    tried = []

    def connect(node: RunNode) -> None:
        tried.append(node.node)
        if not reachable and node not in nodes[:MAX_PARALLEL_NODES]:
            time.sleep(0.5)  # a busy machine may see the failures of the first nodes late
        if node.node not in reachable:
            raise ConnectionLost(f"{node.node} does not answer.")

    with pytest.raises(ExecuteError) as exc_info:
        on_all(nodes, {}, connect)
    if reachable:
        assert len(tried) == 1000
    else:
        assert len(tried) < 200
        assert exc_info.value.message == "n[0-63] does not answer; the other 936 nodes were left out."


@pytest.fixture(scope="module")
def stored_project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Path]:
    """Return a project, and its folder in a store, which no test changes."""
    base = tmp_path_factory.mktemp("stored")
    source = write_files(base / "source", {name: name for name in ("train.py", "net/layers.py", "run.sh", "a b")})
    (source / "run.sh").chmod(0o755)
    (source / "net" / "link.py").symlink_to("../train.py")
    os.link(source / "a b", source / "net" / "hard")
    recipe = Recipe(name="train", script=str(source / "train.py"), own_script=True)
    project = project_of(recipe, None, limit=1, left_out=[])
    step = make_store_step(source, project.files, base / "store", base / "run")
    store(step, {"node0": Local()})
    return project, Path(step.path)


@pytest.fixture
def project(stored_project: tuple[Project, Path], tmp_path: Path) -> Project:
    """Return a project that is in the store of the test."""
    project, stored = stored_project
    shutil.copytree(stored, tmp_path / "store" / project.digest, symlinks=True)
    return project


@pytest.fixture
def fetch(tmp_path: Path, project: Project) -> Callable[[], Path]:
    """Return a function that fetches the project, and returns its folder."""
    source = Source(name="node0", remote=Local(), python=sys.executable)
    request = FetchRequest(source="", project=project, destination=tmp_path / "back")
    arguments = (source, str(tmp_path / "store"), "/run/project", tmp_path, request, FetchListener())
    return lambda: fetch_project(*arguments).folder


def test_a_project_comes_back_as_it_was_sent(fetch: Callable[[], Path], project: Project) -> None:
    for _ in range(2):
        folder = fetch()
        assert content_store.hash_of(folder) == project.digest
    assert os.readlink(folder / "net" / "link.py") == "../train.py"
    assert os.access(folder / "run.sh", os.X_OK)
    assert os.access(folder / "train.py", os.W_OK)


def test_a_destination_with_other_content_is_refused(fetch: Callable[[], Path], tmp_path: Path) -> None:
    for name in ("back", "back/mine", "back/train.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
        with pytest.raises(RequestError, match="back has other content"):
            fetch()
        assert path.read_text() == ""
        path.unlink()


def change(stored: Path) -> None:
    (stored / "train.py").chmod(0o600)
    (stored / "train.py").write_text("changed")


def replace_by_link(stored: Path) -> None:
    stored.joinpath("net").chmod(0o700)
    stored.joinpath("net", "layers.py").unlink()
    stored.joinpath("net", "layers.py").symlink_to("/etc/passwd")


@pytest.mark.parametrize("damage", [change, replace_by_link, content_store.remove])
def test_a_project_that_is_not_as_it_was_sent_does_not_come_back(
    fetch: Callable[[], Path], project: Project, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(tmp_path / "store" / project.digest)
    message = "no longer exists: there is no folder" if damage is content_store.remove else "is not as it was sent"
    with pytest.raises(ExecuteError, match=message) as error:
        fetch()
    assert "--from" in error.value.hint
    assert not (tmp_path / "back").exists()
    assert not list(tmp_path.glob(".back*"))
