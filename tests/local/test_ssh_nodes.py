"""`orch` with a node behind a real sshd, recorded as provisioning leaves it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import orch_environment
from tests.local.runs import Orch, expect_exit
from tests.local.ssh_node import INVENTORY, TWO_RANKS, SshNode


def test_a_dry_run_writes_nothing_and_its_script_can_be_pasted(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    before = ssh_node.files()
    dry = expect_exit(orch("train", "own.py", *INVENTORY, *TWO_RANKS, "--dry-run"))
    assert ssh_node.files() == before
    assert not (tmp_path / "runs").exists()
    assert not (ssh_node.root / "runs").exists()
    expect_exit(subprocess.run(["sh"], input=dry.stdout, capture_output=True, text=True, cwd=tmp_path))
    assert ssh_node.state.joinpath("ssh_config").stat().st_mode & 0o077 == 0
    listed = json.loads(orch("runs", *INVENTORY, "--json").stdout)["runs"]
    assert [(one["state"], one["nodes"]) for one in listed] == [("done", ["far"])]
    logs = orch("logs", *INVENTORY)
    assert logs.stdout.count("sum 2.0") == 2, logs.stderr
    assert open_to_others(ssh_node.root / "runs") == []


def test_rank_0_is_heard_while_the_run_is_watched(orch: Orch, ssh_node: SshNode) -> None:
    process = expect_exit(orch("train", "own.py", *INVENTORY, *TWO_RANKS))
    assert process.stderr.count("sum 2.0") == 1


def test_the_verbs_are_the_same_from_the_controller_and_from_another(
    orch: Orch, ssh_node: SshNode, tmp_path: Path
) -> None:
    process = expect_exit(orch("train", "long.py", *INVENTORY, *TWO_RANKS, "--detach", "--json"))
    run = json.loads(process.stdout)["run_id"]
    assert (ssh_node.state / "ssh_config").exists()
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "logs", run, "--follow", "--grep", "beg"],
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        said = {follower.stdout.readline() for _ in range(2)}
        assert said == {f"[{rank} far] begun\n" for rank in (0, 1)}
        other = ("--runs-dir", "elsewhere")
        shown = orch("runs", *other, "show", "last", *INVENTORY, "--json")
        assert json.loads(shown.stdout)["state"] == "running", shown.stderr
        expect_exit(orch("clean", "--check", *INVENTORY))
        stopped = json.loads(orch("stop", run, *INVENTORY, *other, "--json").stdout)
        assert [(node["node"], node["state"]) for node in stopped["nodes"]] == [("far", "clean")]
        assert follower.wait(timeout=60) == 0
    expect_exit(orch("attach", run), 130)
    assert json.loads(orch("runs", "show", run, "--json").stdout)["state"] == "stopped"
    fetched = orch("fetch", run, "--from", str(ssh_node.root / "runs" / run / "ranks"), "--json")
    assert json.loads(fetched.stdout)["files"] >= 2, fetched.stderr
    expect_exit(orch("report", run, *other, *INVENTORY))
    assert open_to_others(ssh_node.root / "runs") == open_to_others(tmp_path / "runs") == []


def open_to_others(base: Path) -> list[str]:
    """Files and folders of runs that another user of the machine could look at."""
    assert base.is_dir()
    found = [path for path in (base, *base.rglob("*")) if path.stat().st_mode & 0o077]
    return [str(path.relative_to(base.parent)) for path in found]


def test_a_node_that_does_not_answer_fails_the_run_before_it_begins(orch: Orch, ssh_node: SshNode) -> None:
    path = ssh_node.state / "nodes/far.json"
    recorded = json.loads(path.read_text())
    recorded["connection"]["port"] = "9"
    path.write_text(json.dumps(recorded))
    process = expect_exit(orch("train", "own.py", *INVENTORY, *TWO_RANKS), 1)
    assert "error: far does not answer" in process.stderr
    assert "nothing was started" in process.stderr
    assert "orch attach" not in process.stderr
    assert [run["state"] for run in json.loads(orch("runs", "--json").stdout)["runs"]] == ["failed"]


def test_an_unknown_host_key_is_named_and_nothing_is_started(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    (tmp_path / "ssh/known_hosts").write_text("")
    process = expect_exit(orch("train", "own.py", *INVENTORY, *TWO_RANKS), 1)
    assert "error: far: its host key is not known here; nothing was started." in process.stderr
    assert "ssh-keyscan HOST >> ~/.ssh/known_hosts" in process.stderr
    assert "keep running" not in process.stderr
