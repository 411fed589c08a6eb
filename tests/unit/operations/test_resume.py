"""Find the runs that `orch resume` continues, and change their requests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import RequestError
from orchestrator.operations.resume import Changes, check_unfinished, find_runs, plan
from orchestrator.operations.runs import in_folder_of
from orchestrator.planning.request import TrainRequest
from orchestrator.runs import store
from orchestrator.targets.interface import ignore
from tests.support.recorded import make_outcome, make_run, write_events, write_json


def make(base: Path, run_id: str, state: str, *, created: float = 1.0, attempts: int = 1, **fields: object) -> Path:
    """Write a run that has ended in this state after some attempts."""
    folder = make_run(base, run_id, ranks=1, nodes=1, seconds=1, created=created, **fields)
    write_json(folder / "outcome.json", make_outcome(state))
    write_events(folder, ({"event": "launched", "rank": -1, "attempt": number + 1} for number in range(attempts)))
    return folder


def ids(base: Path, name: str) -> list[str]:
    return [run.id for run in find_runs(base, name, ignore)]


def test_last_is_the_newest_unfinished_run(tmp_path: Path) -> None:
    for number, state in enumerate(["failed", "stopped", "done"]):
        make(tmp_path, f"run-{number}x", state, created=float(number))
    assert ids(tmp_path, "last") == ["run-1x"]


def test_an_array_stands_for_its_unfinished_runs_in_its_order(tmp_path: Path) -> None:
    for number, state in enumerate(["failed", "done", "preempted", *["stopped"] * 8]):
        make(tmp_path, f"sweep-{number}", state)
    assert ids(tmp_path, "sweep") == ["sweep-0", *(f"sweep-{number}" for number in range(2, 11))]
    assert ids(tmp_path, "sweep-2") == ["sweep-2"]


def test_other_runs_are_refused_with_the_reason(tmp_path: Path) -> None:
    for state, fields, message in (
        ("done", {}, "is done: there is nothing to resume"),
        ("failed", {"request": {}}, "its request is recorded only there"),  # of another machine
    ):
        make(tmp_path / state, "run", state, **fields)
        with pytest.raises(RequestError, match=message):
            ids(tmp_path / state, "run")
        with pytest.raises(RequestError, match="There is no unfinished run"):
            ids(tmp_path / state, "last")


def test_resumed_run_that_was_refused_can_be_resumed_again(tmp_path: Path) -> None:
    assert store.can_resume(store.load(make(tmp_path, "resumed", "refused")))
    assert not store.can_resume(store.load(make(tmp_path, "new", "refused", attempts=0)))


def test_changes_replace_only_what_they_name() -> None:
    request = TrainRequest(recipe="q", nodes=2, ppn=2, env=("A=1", "B=2"), max_restarts=1)
    assert Changes().apply(request) == request
    result = Changes(nodes=1, ppn="auto", env=("B=3",), max_restarts=0).apply(request)
    assert result == TrainRequest(recipe="q", nodes=1, env=("A=1", "B=3"))


def test_ranks_per_node_stay_unless_others_are_named(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text("")
    request = {"recipe": str(script), "backend": "gloo"}
    folder = make(tmp_path, "run", "failed", request=request, directory=str(tmp_path))
    record = json.loads((folder / "plan.json").read_text())
    ranks = [record["layout"][0] | {"rank": rank, "local_rank": rank, "local_world_size": 2} for rank in range(2)]
    write_json(folder / "plan.json", record | {"layout": ranks})
    run = store.load(folder)
    assert [len(plan(run, Changes(ppn=ppn), tmp_path, ignore).run.layout) for ppn in (None, "1")] == [2, 1]
    assert plan(run, Changes(), tmp_path, ignore).request.ppn is None
    with pytest.raises(RequestError, match=r"does not have the secret in --with 'a @ https://<masked>@h/a.whl'"):
        plan(run, Changes(), tmp_path, ignore, TrainRequest(recipe="q", packages=("a @ https://<masked>@h/a.whl",)))
    make(tmp_path, "first", "failed", attempts=0, request=request, directory=str(tmp_path))
    assert len(plan(store.load(tmp_path / "first"), Changes(), tmp_path, ignore).run.layout) == 1


@pytest.mark.parametrize(("ppn", "is_changed"), [("1", True), ("2", False)], ids=["fewer", "equal"])
def test_number_of_ranks_at_the_first_start_stays_that_of_the_global_batch(
    tmp_path: Path, ppn: str, is_changed: bool
) -> None:
    (tmp_path / "own.py").write_text("")
    request = {"recipe": str(tmp_path / "own.py"), "backend": "gloo"}
    folder = make(tmp_path, "run", "failed", request=request, directory=str(tmp_path))
    write_events(folder, ({"event": "launched", "rank": -1, "attempt": n, "ranks": 3 - n} for n in (1, 2)))
    notes: list[str] = []
    planned = plan(store.load(folder), Changes(ppn=ppn), tmp_path, notes.append)
    assert '"ORCH_PLANNED_WORLD_SIZE": "2"' in planned.describe()
    assert any("ORCH_PLANNED_WORLD_SIZE=2" in note for note in notes) == is_changed


def test_folder_of_the_request_is_the_working_directory_and_must_exist(tmp_path: Path) -> None:
    run = store.load(make(tmp_path / "runs", "run", "failed", directory=str(tmp_path)))
    previous_directory = Path.cwd()
    with in_folder_of(run):
        assert Path.cwd() == tmp_path
    assert Path.cwd() == previous_directory
    run = store.load(make(tmp_path / "runs", "gone", "failed", directory=str(tmp_path / "gone")))
    with pytest.raises(RequestError, match="No such file or directory"), in_folder_of(run):
        pass


def test_copy_of_a_run_is_not_resumed_in_the_folder_of_the_original(tmp_path: Path) -> None:
    folder = make(tmp_path / "runs", "run", "failed", request={"recipe": "bert-qa"}, directory=str(tmp_path))
    (tmp_path / "link").symlink_to("runs")
    copied = shutil.copytree(folder, tmp_path / "copies" / "run")
    assert plan(store.load(tmp_path / "link" / "run"), Changes(), tmp_path / "link", ignore).run.run_dir == str(folder)
    with pytest.raises(RequestError, match=f"{copied} is a copy of {folder}"):
        plan(store.load(copied), Changes(), copied.parent, ignore)


def test_running_run_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, "run", "failed", target="kubernetes", location={"job": "orch-r"})
    (folder / "outcome.json").unlink()
    with pytest.raises(RequestError, match="has not ended") as exc_info:
        check_unfinished(store.load(folder))
    assert f"`orch stop run --runs-dir {tmp_path}`" in exc_info.value.hint
