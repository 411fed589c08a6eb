"""Check what a newcomer reads: hints for common mistakes, and each fact once."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit, last_run, start_orch, write_script
from tests.support.recorded import make_outcome, make_run, write_json
from tests.support.waiting import wait_until

PRINT_PROGRESS = """
from orch_node import report
for step in range(1, 4):
    print(f'step {step}/3', flush=True)
    report('progress', phase='train', step=step, steps=3, printed=True)
"""


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((), "Missing argument 'RECIPE_OR_SCRIPT'", "orch train bert-qa"),
        (("--ppn", "2"), "Missing argument 'RECIPE_OR_SCRIPT'", "orch train bert-qa"),
        (("own.py", "--epochs", "3"), "No such option: --epochs", "go after --"),
        (("own.py", "--luncher", "x"), "--luncher (Possible options: --launcher", "go after --"),
        (("own.py", "--ppn", "0"), "--ppn 0: a node needs at least one rank", "--ppn auto"),
        (("own.py", "--inventory", "./tab.yml"), "tab.yml", "replace the tab"),
    ],
    ids=["no-arguments", "only-options", "script-option", "typo", "ppn-0", "tab"],
)
def test_mistake_has_message_and_hint(
    orch: Orch, tmp_path: Path, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    write_script(tmp_path, "")
    (tmp_path / "tab.yml").write_text("all:\n\thosts:\n\t\ta:\n")
    first, second = expect_exit(orch("train", *arguments), 2).stderr.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert hint in second
    if "epochs" in message:
        assert "Did you mean" not in second


def test_refused_run_leaves_no_files_and_names_the_option_to_wait(orch: Orch, tmp_path: Path) -> None:
    train = ("train", write_script(tmp_path, "import time\ntime.sleep(60)\n"), "--ppn", "2")
    first = start_orch(tmp_path, *train, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: list(tmp_path.glob("runs/*/ranks/rank-1.log")), "the first run")
        folder = last_run(tmp_path)
        assert f"{folder.name}  running  " in orch("runs").stdout
        refused = expect_exit(orch(*train), 1)
        assert "refused: node0 is taken" in refused.stderr
        assert "--wait-for-cores waits" in refused.stderr
        assert (refused.stdout + refused.stderr).count("is taken") == 1
        assert "files:" not in refused.stderr
        assert list((tmp_path / "runs").glob("*/")) == [folder]
        assert [run["id"] for run in json.loads(orch("runs", "--json").stdout)["runs"]] == [folder.name]
        detached = expect_exit(orch(*train, "--detach"), 1)
        assert "refused: node0 is taken" in detached.stderr
        assert "detached from" not in detached.stderr
        assert list((tmp_path / "runs").glob("*/")) == [folder]
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)


def test_attach_to_a_refused_run_keeps_its_files(orch: Orch, tmp_path: Path) -> None:
    refused = make_run(tmp_path / "runs")
    write_json(refused / "outcome.json", make_outcome("refused"))
    expect_exit(orch("attach", refused.name), 1)
    assert refused.exists()


FAIL = """def act():
    open('data/x.csv')
try:
    import apex
except ImportError as error:
    print(repr(error))
act()
"""


def test_traceback_and_its_explanation_are_printed_once_and_the_id_of_a_run_twice(orch: Orch, tmp_path: Path) -> None:
    process = expect_exit(orch("train", write_script(tmp_path, FAIL), "--ppn", "1"), 1)
    output = process.stdout + process.stderr
    assert output.count("Traceback (most recent call last)") == 1
    assert process.stderr.count("No such file or directory: 'data/x.csv'") == 2, "by the rank, and as the cause"
    assert process.stderr.count("data/x.csv does not exist where the rank runs") == 1
    assert "apex" not in process.stderr, "the script has handled that error"
    run = last_run(tmp_path)
    assert f"run: {run.name} in {run.parent}\n" in process.stderr
    assert output.count(run.name) == 3, "of the run, its logs and how to resume it"
    assert output.count("line 2, in act") == 2


def test_progress_that_rank_0_prints_is_not_repeated(orch: Orch, tmp_path: Path) -> None:
    train = ("train", write_script(tmp_path, PRINT_PROGRESS), "--ppn", "1")
    process = expect_exit(orch(*train))
    assert "step 3/3" in process.stdout
    assert (process.stdout + process.stderr).count(last_run(tmp_path).name) == 2
    assert "train: " not in process.stderr
    assert "train: 3/3" in orch(*train, "--show", "none").stderr


def test_missing_key_file_is_named(orch: Orch, tmp_path: Path, sshd: str) -> None:
    folder = Path(sshd).parent
    (port,) = re.findall(r"Port (\d+)", Path(sshd).read_text())
    variables = {
        "ansible_host": "127.0.0.1",
        "ansible_port": int(port),
        "ansible_ssh_private_key_file": str(folder / "nosuch"),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={folder}/known_hosts -o IdentitiesOnly=yes",
    }
    inventory = tmp_path / "lab.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {"far": variables}}}))
    process = expect_exit(orch("provision", str(inventory)), 1)
    assert f"its key file {folder}/nosuch does not exist on this machine" in process.stdout
    assert "Correct ansible_ssh_private_key_file" in process.stdout
