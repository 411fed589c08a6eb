"""What a newcomer reads: hints for common mistakes, and each thing once."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import orch_environment
from tests.local.runs import Orch, expect_exit
from tests.local.workspaces import Workspace
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((), "Name a recipe or a script to train", "orch train bert-qa"),
        (("--ppn", "2"), "Name a recipe or a script to train", "orch train bert-qa"),
        (("own.py", "--epochs", "3"), "No such option: --epochs", "go after --"),
        (("own.py", "--luncher", "x"), "No such option: --luncher", "Did you mean --launcher?"),
        (("own.py", "--ppn", "0"), "--ppn 0: a node needs at least one rank", "--ppn auto"),
        (("own.py", "--inventory", "./tab.yml"), "./tab.yml", "replace the tab"),
    ],
    ids=["alone", "flags-alone", "script-option", "typo", "ppn-0", "tab"],
)
def test_a_mistake_gets_its_own_message(
    orch: Orch, tmp_path: Path, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    (tmp_path / "own.py").write_text("")
    (tmp_path / "tab.yml").write_text("all:\n\thosts:\n\t\ta:\n")
    process = expect_exit(orch("train", *arguments), 2)
    first, second = process.stderr.splitlines()
    assert first.startswith("error: ")
    assert message.removeprefix("./") in first
    assert hint in second
    if "epochs" in message:
        assert "Did you mean" not in second


def test_a_refused_run_leaves_nothing_and_names_the_option_to_wait(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("print('BEGUN', flush=True)\nimport time\ntime.sleep(60)\n")
    first = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "train", "own.py", "--ppn", "2"],
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: list(tmp_path.glob("runs/*/ranks/rank-1.log")), "the first run starts")
        (folder,) = (tmp_path / "runs").iterdir()
        assert "this machine" in orch("runs").stdout
        refused = expect_exit(orch("train", "own.py", "--ppn", "2"), 1)
        assert "refused: node0 is taken" in refused.stdout
        assert "--queue waits" in refused.stdout
        assert "files:" not in refused.stdout
        assert list((tmp_path / "runs").iterdir()) == [folder]
        assert [run["id"] for run in json.loads(orch("runs", "--json").stdout)["runs"]] == [folder.name]
        expect_exit(orch("train", "own.py", "--ppn", "2", "--detach"))
        (detached,) = {*(tmp_path / "runs").iterdir()} - {folder}
        expect_exit(orch("attach", detached.name), 1)
        assert detached.exists(), "attach changes nothing"
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)


def test_a_traceback_and_the_folder_of_a_run_are_printed_once(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def act():\n    raise ValueError('a reason')\nact()\n")
    process = expect_exit(orch("train", "own.py", "--ppn", "1"), 1)
    output = process.stdout + process.stderr
    assert output.count("Traceback (most recent call last)") == 1
    assert "ValueError: a reason" in process.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    files = [line for line in output.splitlines() if line.startswith("files")]
    assert set(files) == {f"files: {folder}"}
    hidden = orch("train", "own.py", "--ppn", "1", "--show", "none")
    assert "Traceback (most recent call last)" in hidden.stdout


def test_progress_that_rank_0_prints_is_not_repeated(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import time\nfrom orch_node import report\n"
        "for step in range(1, 4):\n"
        "    print(f'step {step}/3', flush=True)\n"
        "    report('progress', phase='train', step=step, steps=3, printed=True)\n"
    )
    process = expect_exit(orch("train", "own.py", "--ppn", "1"))
    assert "step 3/3" in process.stderr
    assert (process.stdout + process.stderr).count("files: ") == 1
    assert "train: " not in process.stderr
    hidden = orch("train", "own.py", "--ppn", "1", "--show", "none")
    assert "train: 3/3" in hidden.stderr


def test_a_prefix_names_a_run_on_the_nodes_of_an_inventory(two_hosts: Workspace, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    cell = two_hosts.train(str(tmp_path / "own.py"))
    prefix = cell.report["run_id"][:-1]
    found = expect_exit(
        two_hosts.orch("runs", "show", prefix, *two_hosts.options[2:], "--runs-dir", str(tmp_path), "--json")
    )
    assert json.loads(found.stdout)["run_id"] == cell.report["run_id"]


def test_a_missing_key_file_is_named(orch: Orch, tmp_path: Path, sshd: str) -> None:
    folder = Path(sshd).parent
    (port,) = re.findall(r"Port (\d+)", Path(sshd).read_text())
    options = f"-o UserKnownHostsFile={folder}/known_hosts -o IdentitiesOnly=yes"
    variables = {
        "ansible_host": "127.0.0.1",
        "ansible_port": int(port),
        "ansible_ssh_private_key_file": str(folder / "nosuch"),
        "ansible_ssh_common_args": options,
    }
    inventory = tmp_path / "lab.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {"far": variables}}}))
    process = expect_exit(orch("provision", str(inventory)), 1)
    assert f"its key file {folder}/nosuch does not exist on this machine" in process.stdout
    assert "Correct ansible_ssh_private_key_file" in process.stdout
