"""Train on hosts whose login shells print, quote in other ways than sh, or do both."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.provisioning.playbook import Playbooks, ansible_variables
from tests.conftest import orch_environment, report_missing
from tests.local.runs import expect_exit, start_orch, wait_for_exit, write_script
from tests.local.workspaces import Workspace, make_hosts
from tests.support.hosts import LoginShell
from tests.support.waiting import wait_until

BANNER = '*** Welcome to cluster {\\"quota\\": 12} ***'
SUM_SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("sum", value.item(), flush=True)
os.makedirs("out", exist_ok=True)
open(f"out/rank{dist.get_rank()}.bin", "wb").write(bytes(range(256)) * 100)
time.sleep(float(sys.argv[1]))
"""
BASH = LoginShell(
    files={
        ".bashrc": f'echo "{BANNER}"\necho \'{{"schema": 1, "quota": 12}}\'\necho "[conda] base" >&2\n'
        "trap 'echo bye; echo bye >&2' EXIT\nprintf '\\033[1;32mprompt> \\033[0m'\n"
    }
)
CSH = LoginShell("/bin/csh", {".cshrc": 'echo "{quota: 12}"\n', ".logout": "echo bye\n"})
FISH = LoginShell(
    "/usr/bin/fish",
    {
        ".config/fish/config.fish": 'echo "[fish]"; echo warning >&2\n'
        "function on_exit --on-event fish_exit; echo bye; end\n"
    },
)
ZSH = LoginShell("/bin/zsh", {".zshenv": 'setopt xtrace\nprint -n "prompt> "\nzshexit() { print bye }\n'})
# Settings for a person at a terminal, and a program that runs with another /etc/passwd.
SSH_CONFIG = "Host *\n  RemoteCommand tmux attach\n  RequestTTY force\n  LocalForward 18080 localhost:80\n"
AS_USER = 'mount --bind "$1" /etc/passwd; shift; exec "$@"'
SHELLS = (BASH, CSH, FISH, ZSH)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Yield a workspace whose hosts have these login shells."""
    if missing := [shell.program for shell in SHELLS if not Path(shell.program).exists()]:
        report_missing(f"no {' '.join(missing)}: tests/prepare installs them")
    folder = tmp_path_factory.mktemp("shells")
    write_script(folder, SUM_SCRIPT)
    with make_hosts(folder, "--ppn", "1", count=len(SHELLS), shells=SHELLS) as workspace:
        yield workspace


def count_sums(workspace: Workspace) -> int:
    """Return how many ranks have printed the sum into their logs on the hosts."""
    logs = [path for host in workspace.lab.hosts for path in (host.folder / "root/runs").glob("*/ranks/rank-*.log")]
    return sum("sum 4.0" in log.read_text() for log in logs)


def test_run_is_watched_stopped_and_fetched(workspace: Workspace) -> None:
    with start_orch(workspace.folder, "train", "own.py", *workspace.options, "--", "600") as process:
        wait_until(lambda: count_sums(workspace) == len(SHELLS), "the output of all ranks")
        assert "running" in expect_exit(workspace.orch("runs", *workspace.options[-2:])).stdout
        stopped = expect_exit(workspace.orch("stop", "last"))
        ended = wait_for_exit(process, 130)
    assert "unreachable" not in stopped.stdout + stopped.stderr
    assert "sum 4.0" in ended.stdout + ended.stderr
    assert "bye" not in ended.stdout + ended.stderr
    logs = expect_exit(workspace.orch("logs", "last")).stdout
    assert re.findall(r"sum \S+|bye|quota|warning", logs) == ["sum 4.0"] * 4
    expect_exit(workspace.orch("fetch", "last", "--to", "got"))
    fetched = [path.read_bytes() for path in (workspace.folder / "got").rglob("rank0.bin")]
    assert fetched == [bytes(range(256)) * 100]


def test_commands_print_only_their_own_output(workspace: Workspace) -> None:
    script = "printf '%s|' \"$1\" 'a!b\\c'; echo done >&2"
    process = expect_exit(workspace.orch("exec", workspace.options[-1], "--", "sh", "-c", script, "sh", "it's\nfine"))
    assert not re.search("quota|bye|warning|conda|prompt|fish", process.stdout + process.stderr)
    assert process.stdout.count("fine|a!b\\c|") == 4
    assert process.stderr.count("done") == 4


def test_ansible_reads_only_the_results_of_its_modules(workspace: Workspace) -> None:
    """Copy a file, for which Ansible runs two modules; settings for a terminal in ~/.ssh/config have no effect."""
    folder = workspace.folder
    (folder / "home/.ssh").mkdir(parents=True)
    (folder / "home/.ssh/config").write_text(SSH_CONFIG)
    (folder / "passwd").write_text(Path("/etc/passwd").read_text().replace(":/root:", f":{folder}/home:"))
    playbooks = Playbooks(inventory=folder, state=folder, log=folder)
    environment = orch_environment(folder) | ansible_variables(playbooks, forks=1)
    files = f"src={folder}/own.py dest={folder}/copied-{{{{inventory_hostname}}}}"
    ansible = ["ansible", "-i", workspace.options[-1], "all", "-m", "ansible.builtin.copy", "-a", files]
    command = ["unshare", "--mount", "sh", "-c", AS_USER, "sh", str(folder / "passwd"), *ansible]
    done = expect_exit(subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180))
    assert not re.search("junk|quota|bye|tmux", done.stdout + done.stderr)
    assert done.stdout.count('"changed": true') == 4
    assert {path.read_text() for path in folder.glob("copied-*")} == {SUM_SCRIPT}
