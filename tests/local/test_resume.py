"""Resume and restart runs on this machine and on two hosts: same id, same folders, next attempt."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit, last_run, rank_log, read_events, start_orch, write_script
from tests.local.workspaces import Workspace, make_hosts
from tests.support.waiting import wait_until

# Rank 0 saves in its folder, and the last rank fails once.
SCRIPT = """
import os, torch.distributed as dist
rank, size = dist.get_rank(), dist.get_world_size()
first = not os.path.exists("saved")
if rank == 0:
    print("planned for", os.environ["ORCH_PLANNED_WORLD_SIZE"], flush=True)
    print("begins" if first else "continues with", open("saved").read() if not first else "", flush=True)
dist.barrier()
if first:
    open(f"wrote-{rank}", "w").close()
    if rank == 0:
        open("saved", "w").write(f"what {size} ranks wrote")
    dist.barrier()
    if rank == size - 1:
        raise RuntimeError("once")
"""
GLOO = ("--backend", "gloo")


@pytest.mark.parametrize("options", [(), ("--wait-for-cores",)])
def test_run_resumes_with_fewer_ranks_and_changed_script(orch: Orch, tmp_path: Path, options: tuple[str, ...]) -> None:
    script = write_script(tmp_path, SCRIPT)
    failed = expect_exit(orch("train", script, "--ppn", "2", *GLOO), 1)
    run = last_run(tmp_path)
    assert failed.stderr.splitlines()[-1] == f"resume: orch resume {run.name}"
    note = orch("train", script, "--ppn", "2", *GLOO, "--dry-run").stderr
    assert f"{run.name} is unfinished, to resume it: orch resume {run.name}" in note
    write_script(tmp_path, f"{SCRIPT}\n")
    resumed = expect_exit(orch("resume", "--ppn", "1", *options))
    assert last_run(tmp_path) == run
    assert "changed: --ppn 1 (was 2)" in resumed.stderr
    assert f"changed: {tmp_path / 'own.py'} differs from the one that the run was started with" in resumed.stderr
    assert "attempt 2 (the last one failed" in resumed.stderr
    assert "continues with what 2 ranks wrote" in resumed.stdout
    assert "planned for 2" in resumed.stdout, "the number of ranks at the first start"
    assert "begins" not in resumed.stdout, "only the output of the new attempt is shown"
    assert "exited" not in resumed.stderr, "and only its events"
    assert rank_log(run, 0).count("\n") >= 2
    assert f"{run.name} is done: there is nothing to resume" in expect_exit(orch("resume", run.name), 2).stderr


def test_run_that_two_commands_resume_at_once_starts_once(orch: Orch, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    script = write_script(tmp_path, f"import os, time\nassert os.path.exists({str(marker)!r})\ntime.sleep(600)\n")
    expect_exit(orch("train", script), 1)
    marker.touch()
    commands = [start_orch(tmp_path, "resume", last_run(tmp_path).name, "--detach") for _ in range(2)]
    errors = [command.communicate(timeout=120)[1] for command in commands]
    assert sorted(command.returncode for command in commands) == [0, 2], errors
    assert any(re.search("Another command has resumed|has not ended", error) for error in errors), errors
    expect_exit(orch("stop"))
    assert [event["attempt"] for event in read_events(last_run(tmp_path), "launched")] == [1, 2]


def test_run_is_resumed_on_another_node_with_changed_code(two_hosts: Workspace) -> None:
    project = two_hosts.folder / "project"
    project.mkdir()
    (project / "train.py").write_text(f"import settings\nprint('rate', settings.RATE)\n{SCRIPT}")
    (project / "settings.py").write_text("RATE = 0.1\n")
    command = ("train", "project/train.py", *two_hosts.options, *GLOO, "--project", "project")
    failed = expect_exit(two_hosts.orch(*command), 1)
    run = failed.stderr.splitlines()[-1].removeprefix("resume: orch resume ")
    (project / "settings.py").write_text("RATE = 0.2\n")
    resumed = expect_exit(two_hosts.orch("resume", run, "--dry-run"))
    assert "code: differs in settings.py (not sent: --code sends them)" in resumed.stdout
    resumed = expect_exit(two_hosts.orch("resume", run, "--code", "--exclude", "node0"))
    assert "code: differs in settings.py (sent)" in resumed.stderr
    assert "rate 0.2" in resumed.stdout, "not the bytecode of the module as it was, which has the same size and time"
    assert "changed: --exclude node0 (was the default)" in resumed.stderr
    assert "continues with what 2 ranks wrote" in resumed.stdout
    assert "begins" not in resumed.stdout, "also if the logs of all ranks are those of other nodes now"
    report = two_hosts.orch("runs", "show", run).stdout
    assert "started 1 rank on node1 (attempt 2)" in report
    assert "rank 1 on node1 exited with code 1" in report, "the events of the first attempt stay"
    logs = expect_exit(two_hosts.orch("logs", run))
    assert "[0 node0] begins" in logs.stdout
    assert "[0 node1] continues with what 2 ranks wrote" in logs.stdout, "the log of rank 0 on each of its nodes"
    assert "[1 node1] RuntimeError: once" in logs.stderr
    expect_exit(two_hosts.orch("fetch", run, "--to", str(two_hosts.folder / "fetched")))
    names = {path.name for path in (two_hosts.folder / "fetched").iterdir()}
    assert names >= {"saved", "wrote-0", "wrote-1"}, "also what only the other node has"
    listed = expect_exit(two_hosts.orch("runs", *two_hosts.options[-2:]))
    assert run in listed.stdout
    assert "different nodes" not in listed.stderr


def test_output_of_an_attempt_that_nobody_followed_is_not_shown_after_a_resume(two_hosts: Workspace) -> None:
    project = two_hosts.folder / "late"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    expect_exit(two_hosts.orch("train", "late/train.py", *two_hosts.options, *GLOO, "--project", "late", "--detach"))
    wait_until(lambda: "state: failed" in two_hosts.orch("runs", "show", "last").stdout, "the run has failed")
    (project / "train.py").write_text(f"{SCRIPT}# changed, and not sent")
    resumed = expect_exit(two_hosts.orch("resume"))
    assert "continues with what 2 ranks wrote" in resumed.stdout
    assert "begins" not in resumed.stdout
    record = json.loads((last_run(two_hosts.folder) / "plan.json").read_text())
    assert record["scripts"]["sha256"] == record["project"]["files"]["train.py"], "of the script that has run"


# Each of two hosts has its own copy of the project.

# Rank 0 saves, all ranks load if the file exists; the second rank fails once, and then rank 0 saves again.
RESTART_SCRIPT = """
import os, pathlib, torch, torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group()
rank, saved = dist.get_rank(), pathlib.Path("out/saved.pt")
value = torch.load(saved) if saved.exists() else torch.zeros(1)
with open("log.txt", "a") as log:
    log.write(f"rank {rank} starts with {value.item():.0f}\\n")
print("RESULT", value.item(), len(pathlib.Path("log.txt").read_text().splitlines()))
dist.barrier()
if not value.item():
    if rank == 0:
        saved.parent.mkdir()
        torch.save(torch.ones(1), saved)
    dist.barrier()
    assert rank != 1, "fails once"
elif rank == 0:
    torch.save(torch.ones(2), saved)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_what_rank_0_saved_is_on_all_nodes_after_a_restart(two_hosts: Workspace, launcher: str) -> None:
    options = ("--launcher", launcher, "--backend", "gloo", "--max-restarts", "1")
    cell = two_hosts.train_text(RESTART_SCRIPT, *options)
    assert [cell.logs[rank].rpartition("RESULT ")[2].splitlines()[0] for rank in (0, 1)] == ["1.0 2", "1.0 2"]
    run = cell.report["run_id"]
    news = two_hosts.orch("runs", "show", run).stdout
    assert "gave 2 files (log.txt, out/saved.pt)" in news
    assert "log.txt.node1.attempt-1" in news
    fetched = two_hosts.folder / f"fetched-{launcher}"
    assert two_hosts.orch("fetch", run, "--to", str(fetched)).returncode == 0
    assert (fetched / "node1/log.txt.node1.attempt-1").read_text() == "rank 1 starts with 0\n"
    assert (fetched / "node1/log.txt").read_text() == "rank 0 starts with 0\nrank 1 starts with 1\n"
    assert not (fetched / "node1/out").exists(), "node1 has what node0 had saved before the restart"
    elsewhere = ("--runs-dir", str(two_hosts.folder / f"elsewhere-{launcher}"), *two_hosts.options[-2:])
    expect_exit(two_hosts.orch("fetch", run, *elsewhere, "--from", "out", "--to", str(fetched / "elsewhere")))
    assert [path.name for path in (fetched / "elsewhere").iterdir()] == ["saved.pt"]
    expect_exit(two_hosts.orch("fetch", run, *elsewhere))


def test_run_whose_first_node_is_lost_for_good_is_resumed_without_it_by_force(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    with make_hosts(tmp_path, "--ppn", "1", *GLOO) as workspace:
        expect_exit(workspace.orch("train", script, *workspace.options, "--nodes", "node0", "--detach"))
        wait_until(lambda: "begun" in workspace.orch("logs", "last").stdout, "the rank has started")
        workspace.lab.disconnect(workspace.lab.hosts[0])
        without_node0 = ("resume", last_run(tmp_path).name, "--nodes", "node1")
        for command in (("resume",), without_node0):  # the newest unfinished run is this one, too
            refused = expect_exit(workspace.orch(*command), 2)
            assert "may still run: node0 does not answer" in refused.stderr
            assert "--force" in refused.stderr
        expect_exit(workspace.orch(*without_node0, "--force", "--detach"))
        assert "has not ended" in expect_exit(workspace.orch(*without_node0, "--force"), 2).stderr
        expect_exit(workspace.orch("stop"), 1)  # node0 is still cut off
        events = read_events(last_run(tmp_path), "launched")
        assert [(event["attempt"], event["nodes"]) for event in events] == [(1, ["node0"]), (2, ["node1"])]
