"""Run commands and shells on two hosts, in the environment of ranks."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pexpect
import pytest

from tests.conftest import ORCH, orch_environment
from tests.local.runs import expect_exit, start_orch, wait_for_exit
from tests.local.workspaces import Workspace
from tests.support.processes import find_processes
from tests.support.waiting import wait_until

SCRIPT = """
import os, torch.distributed as dist
open(f"rank-{dist.get_rank()}.txt", "w").write(os.environ["COLOR"])
dist.barrier()
"""


@pytest.fixture
def inventory(two_hosts: Workspace) -> str:
    return two_hosts.options[-1]


def test_command_runs_in_the_environment_of_ranks_on_all_nodes(two_hosts: Workspace, inventory: str) -> None:
    for host in two_hosts.lab.hosts:
        (host.folder / "root/env.json").write_text(json.dumps({"SITE": f"of {host.name}"}))
        (host.folder / "root/secrets.json").write_text(json.dumps({"HF_TOKEN": "hf_hidden"}))
    try:
        print_environment = (
            "import os, sys\n"
            "print(sys.executable, os.environ['SITE'], os.environ['GLOO_SOCKET_IFNAME'], sys.stdin.read() == '')\n"
            "print(os.environ['HF_TOKEN'][:2], sys.argv[1:], file=sys.stderr)"
        )
        process = expect_exit(two_hosts.orch("exec", inventory, "--", "python", "-c", print_environment, "$(x)", "a b"))
        python = f"{two_hosts.lab.root}/stacks/current/bin/python"
        assert sorted(process.stdout.splitlines()) == [f"node{i}: {python} of node{i} eth0 True" for i in (0, 1)]
        assert sorted(process.stderr.splitlines()) == [f"node{i}: hf ['$(x)', 'a b']" for i in (0, 1)]
        arguments = two_hosts.orch("exec", inventory, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline")
        assert "hf_hidden" not in arguments.stdout
    finally:
        for host in two_hosts.lab.hosts:
            (host.folder / "root/env.json").unlink()
            (host.folder / "root/secrets.json").unlink()


def test_exit_code_names_the_nodes_on_which_the_command_failed(two_hosts: Workspace, inventory: str) -> None:
    failed = expect_exit(two_hosts.orch("exec", inventory, "--", "sh", "-c", 'test "$(hostname)" = node0'), 1)
    assert failed.stderr == "error: node1: exit code 1.\n"
    expect_exit(two_hosts.orch("exec", inventory, "--nodes", "node0", "--", "sh", "-c", 'test "$(hostname)" = node0'))
    missing = expect_exit(two_hosts.orch("exec", inventory, "--nodes", "1", "--", "no-such-program"), 1)
    assert missing.stderr == "node0: no-such-program: No such file or directory\nerror: node0: exit code 127.\n"


def test_command_of_a_run_starts_in_its_folder(two_hosts: Workspace) -> None:
    two_hosts.train_text(SCRIPT, "--backend", "gloo", "--env", "COLOR=dark red")
    process = expect_exit(two_hosts.orch("exec", "last", "--", "sh", "-c", 'cat rank-*.txt; echo " $COLOR $RANK."'))
    assert sorted(process.stdout.splitlines()) == [f"node{i}: dark red dark red ." for i in (0, 1)]
    process = expect_exit(two_hosts.orch("exec", "last", "--nodes", "node1", "--", "ls"))
    assert "node1: rank-1.txt" in process.stdout
    assert "node0" not in process.stdout
    assert "no node 'node7'" in expect_exit(two_hosts.orch("exec", "last", "--nodes", "node7", "--", "ls"), 2).stderr


@pytest.mark.parametrize(
    ("place", "number", "code"), [("local", signal.SIGINT, 130), ("inventory", signal.SIGKILL, -9)]
)
def test_no_process_is_left_when_the_command_is_interrupted(
    two_hosts: Workspace, inventory: str, place: str, number: signal.Signals, code: int
) -> None:
    mark = f"{place}-{number.name}-{two_hosts.folder}"
    script = "trap '' TERM; setsid sh -c 'sleep 600; :' \"$0\" & echo ready; sleep 600; :"
    arguments = ("exec", inventory if place == "inventory" else "local", "--", "sh", "-c", script, mark)
    process = start_orch(two_hosts.folder, *arguments)
    for _ in range(2 if place == "inventory" else 1):
        assert process.stdout.readline().endswith(": ready\n")
    assert len(find_processes(mark)) > 2
    process.send_signal(number)
    wait_for_exit(process, code)
    wait_until(lambda: not find_processes(mark), "the end of the commands", seconds=30)


def test_shell_is_interactive_and_has_the_environment_of_ranks(two_hosts: Workspace, inventory: str) -> None:
    environment = {**orch_environment(two_hosts.folder), "SHELL": "/bin/bash"}
    for place, options, host in ((inventory, ["--node", "node1"], "node1"), ("local", [], "")):
        shell = pexpect.spawn(
            sys.executable,
            [*ORCH[1:], "shell", place, *options],
            cwd=two_hosts.folder,
            env=environment,
            timeout=60,
            encoding="utf-8",
        )
        shell.sendline('echo "[$((6 * 7)) $(command -v python) $(hostname) $(test -t 0 && echo terminal)]"')
        shell.expect(r"\[42 (\S+) (\S+) terminal\]")
        python, name = shell.match.groups()
        stack = Path(two_hosts.lab.root, "stacks/current") if host else Path(sys.prefix)
        assert python == str(stack / "bin/python")
        assert name == host or not host
        shell.sendline("exit 5")
        shell.expect(pexpect.EOF)
        shell.close()
        assert shell.exitstatus == 5
