"""Run orch with a node behind a real sshd."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.files import TRAIN
from orchestrator.targets.connections.connection import Ssh
from tests.local.runs import Orch, expect_exit, last_run, start_orch, wait_for_exit
from tests.local.ssh_node import INVENTORY, TWO_RANKS, SshNode
from tests.support.ports import free_port
from tests.support.recorded import make_run
from tests.support.waiting import wait_until

TRAIN_ON_FAR = ("train", "own.py", *INVENTORY, *TWO_RANKS)


def accessible_to_others(folder: Path) -> list[str]:
    """Return files and folders of runs that another user of the machine could read or change."""
    assert folder.is_dir()
    paths = [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]
    return [str(path.relative_to(folder.parent)) for path in paths]


def test_dry_run_writes_nothing_and_the_run_is_private(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    before = ssh_node.files()
    dry_run = expect_exit(orch(*TRAIN_ON_FAR, "--dry-run", "-o", "sh"))
    assert ssh_node.files() == before
    assert not (tmp_path / "runs").exists()
    assert not (ssh_node.root / "runs").exists()
    supervise = next(line for line in dry_run.stdout.splitlines() if " supervise " in line)
    expect_exit(orch(*TRAIN_ON_FAR, "--detach"))
    check_list_of_runs(orch, ssh_node)
    expect_exit(orch("runs", "compare", "last"))
    assert (last_run(tmp_path) / "ranks/rank-1.metrics.jsonl").exists(), "the list has copied only the state"
    assert expect_exit(orch("attach")).stdout.count("sum 2.0") == 1
    argv = json.loads((last_run(tmp_path) / "plan.json").read_text())["command"]["argv"]
    assert shlex.split(supervise)[-len(argv)] == argv[0]
    assert ssh_node.state.joinpath("ssh_config").stat().st_mode & 0o077 == 0
    runs = json.loads(orch("runs", *INVENTORY, "--json").stdout)["runs"]
    assert [(run["state"], run["nodes"]) for run in runs] == [("done", ["far"])]
    logs = orch("logs", *INVENTORY)
    assert logs.stdout.count("sum 2.0") == 2, logs.stderr
    assert accessible_to_others(ssh_node.root / "runs") == []


def test_commands_work_from_this_and_from_another_controller(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    process = expect_exit(orch("train", "long.py", *INVENTORY, *TWO_RANKS, "--detach", "--json"))
    run = json.loads(process.stdout)["run_id"]
    assert (ssh_node.state / "ssh_config").exists()
    other_controller = ("--runs-dir", "elsewhere", *INVENTORY)
    with start_orch(tmp_path, "logs", run, "--follow", "--grep", "beg", stderr=None) as follower:
        assert {follower.stdout.readline() for _ in range(2)} == {f"[{rank} far] begun\n" for rank in (0, 1)}
        shown = orch("runs", "show", "last", *other_controller, "--json")
        assert json.loads(shown.stdout)["state"] == "running", shown.stderr
        expect_exit(orch("clean", "--dry-run", *INVENTORY))
        stopped = json.loads(orch("stop", run, *other_controller, "--json").stdout)
        assert [(node["node"], node["state"]) for node in stopped["nodes"]] == [("far", "clean")]
        assert follower.wait(timeout=60) == 0
    expect_exit(orch("attach", run), 130)
    assert json.loads(orch("runs", "show", run, "--json").stdout)["state"] == "stopped"
    fetched = orch("fetch", run, "--from", str(ssh_node.root / "runs" / run / "ranks"), "--json")
    assert json.loads(fetched.stdout)["files"] >= 2, fetched.stderr
    expect_exit(orch("report", run, *other_controller))
    with (tmp_path / "log").open("w") as log:  # a file of the project, which a note about the stopped run makes longer
        wait_for_exit(start_orch(tmp_path, "train", "long.py", *INVENTORY, *TWO_RANKS, "--detach", stderr=log))
    expect_exit(orch("stop", "last"))
    assert f"{run} is unfinished" in (tmp_path / "log").read_text()
    assert accessible_to_others(ssh_node.root / "runs") == accessible_to_others(tmp_path / "runs") == []


def check_list_of_runs(orch: Orch, ssh_node: SshNode) -> None:
    """Check that the list of runs has the state that the node reports, and says when it cannot."""
    wait_until(lambda: any(ssh_node.root.glob("runs/*/outcome.json")), "the end of the run")
    config = ssh_node.state / "ssh_config"
    text = config.read_text()
    config.write_text(re.sub(r"Port \d+", "Port 9", text))
    process = expect_exit(orch("runs"))
    assert " unknown " in process.stdout
    assert "far does not answer" in process.stderr
    assert "; last seen running\n" in process.stderr
    config.write_text(text)
    process = expect_exit(orch("runs"))
    assert " done " in process.stdout
    assert process.stderr == ""


def test_unknown_or_changed_host_key_is_named_and_starts_nothing(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    known_hosts = tmp_path / "ssh/known_hosts"
    name = known_hosts.read_text().split()[0]
    port = json.loads((ssh_node.state / "nodes/far.json").read_text())["connection"]["port"]
    for text, problem, hint in (
        ("", "is not known here", f"ssh-keyscan -p {port} 127.0.0.1 >> {known_hosts}, and compare"),
        (
            f"{name} {(tmp_path / 'ssh/user.pub').read_text()}",
            "is not the recorded one (ssh-ed25519)",
            f"ssh-keygen -f {known_hosts} -R '{name}'",
        ),
    ):
        known_hosts.write_text(text)
        process = expect_exit(orch(*TRAIN_ON_FAR), 1)
        assert f"error: far: its host key {problem}; nothing was started." in process.stderr
        assert hint in process.stderr
        assert "keep running" not in process.stderr


def test_jump_host_that_refuses_the_connection_is_named(sshd: str, tmp_path: Path) -> None:
    config = Path(sshd)
    node = config.read_text()
    gate = node.replace("Host far node0", "Host gate").replace("/known_hosts", "/gate_hosts")
    config.write_text(f"{node}  ProxyJump gate\n{gate}")
    name = (tmp_path / "ssh/known_hosts").read_text().split()[0]
    for text, problem in (
        ("", "its host key is not known here"),
        (f"{name} {(tmp_path / 'ssh/user.pub').read_text()}", "its host key is not the recorded one"),
    ):
        (tmp_path / "ssh/gate_hosts").write_text(text)
        with pytest.raises(ExecuteError, match=re.escape(f"far (jump host gate): {problem}")) as error:
            Ssh("far", sshd).capture(("true",), seconds=10)
        assert f"{tmp_path}/ssh/gate_hosts" in error.value.hint
    config.write_text(re.sub(r"Port \d+", f"Port {free_port()}", config.read_text()))
    with pytest.raises(ConnectionLost, match=re.escape("far (jump host gate) does not answer")):
        Ssh("far", sshd).capture(("true",), seconds=10)


# The logs of a run on another node.


RUN = "20260101-120000-qa-0000"


def make_two_records(folder: Path, ssh_config: str) -> Path:
    """Record a finished run on a node and on this machine, which has only half of the log.

    Returns:
        The run's folder on the node.
    """
    remote = make_run(folder / "far", RUN, ranks=1, nodes=1)
    node = {"node": "node0", "via": ["ssh", "-F", ssh_config, "node0"]}
    changes = {"run_dir": str(remote), "train": str(TRAIN), "python": sys.executable, "node0": node}
    local = make_run(folder / "runs", RUN, ranks=1, nodes=1, **changes)
    (remote / "ranks/rank-0.log").write_text("line one\nline two\n")
    (local / "ranks/rank-0.log").write_text("line one\n")
    return remote


def test_logs_have_lines_that_only_the_node_has_and_need_no_other_node(orch: Orch, sshd: str, tmp_path: Path) -> None:
    make_two_records(tmp_path, sshd)
    plan = tmp_path / "runs" / RUN / "plan.json"
    value = json.loads(plan.read_text())
    node_off = {"node": "off", "via": ["ssh", "-F", sshd, "off"]}
    plan.write_text(json.dumps(value | {"nodes": [*value["nodes"], node_off]}))
    assert expect_exit(orch("logs", RUN, "--rank", "0")).stdout == "[0 node0] line one\n[0 node0] line two\n"


def test_logs_warn_of_missing_lines_when_the_node_is_unreachable(orch: Orch, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host node0\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    make_two_records(tmp_path, str(config))
    process = expect_exit(orch("logs", RUN), 1)
    assert process.stdout == "[0 node0] line one\n"
    assert "node0" in process.stderr
    assert "may be missing" in process.stderr


def test_logs_fail_when_the_node_has_no_run(orch: Orch, sshd: str, tmp_path: Path) -> None:
    remote = make_two_records(tmp_path, sshd)
    remote.rename(tmp_path / "elsewhere")
    assert str(remote) in expect_exit(orch("logs", RUN, "--follow"), 1).stderr


def test_key_is_used_that_only_the_agent_of_the_ssh_configuration_has(sshd: str, tmp_path: Path) -> None:
    agent, config = str(tmp_path / "agent"), Path(sshd)
    process = subprocess.Popen(["ssh-agent", "-D", "-a", agent], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: Path(agent).exists(), "an ssh-agent")
        key = config.with_name("user")
        subprocess.run(["ssh-add", "-q", key], env={**os.environ, "SSH_AUTH_SOCK": agent}, check=True)
        config.write_text(config.read_text().replace(f"IdentityFile {key}", f"IdentityAgent {agent}"))
        with contextlib.closing(Ssh("far", sshd)) as connection:
            assert connection.capture(("true",), seconds=20).code == 0
    finally:
        process.terminate()
        process.wait()
