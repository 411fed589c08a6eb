"""Commands that start programs: on nodes, around the output of a run, and with a sudo password."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import make_app
from orchestrator.cli.provision import become_password
from orchestrator.errors import ExecuteError, RequestError
from orchestrator.operations.nodes import check_ends, find_commands
from orchestrator.targets.interface import ignore
from tests.support.recorded import make_run


def test_summary_groups_the_nodes_by_their_exit_codes() -> None:
    check_ends({"node0": 0})
    codes = {"node0": 0, "node1": 2, "node2": 2, "node3": 2, "node5": 2, "node6": 127}
    unreachable = ExecuteError("far does not answer (timed out)", hint="Turn it on.")
    with pytest.raises(ExecuteError) as caught:
        check_ends({**codes, "far": unreachable})
    message = "node[1-3,5]: exit code 2; node6: exit code 127; far: does not answer (timed out)."
    assert (caught.value.message, caught.value.hint) == (message, "Turn it on.")


def test_place_without_nodes_of_orch_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path, target="slurm", location={"name": "orch-x", "job": "12", "login": "head"})
    for name, message, hint in (
        ("nowhere", "no inventory 'nowhere'", "orch init"),  # unknown inventory
        ("slurm", "to jobs", "srun --pty"),
        ("k8s:team", "in pods", "kubectl exec"),  # Kubernetes
        ("last", "a job of Slurm", "on head: srun --jobid=12 "),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            find_commands(name, None, stack="current", runs_dir=tmp_path, notify=ignore)
        assert hint in caught.value.hint


RUN = "20260101-120000-qa-0000"


SLURM = {"target": "slurm", "location": {"name": "orch-x", "job": "12"}}


@pytest.mark.parametrize(("output", "changes"), [("../../elsewhere", {}), ("output", SLURM)], ids=["local", "slurm"])
def test_lines_around_the_output_name_the_run(tmp_path: Path, output: str, changes: dict[str, Any]) -> None:
    folder = tmp_path / "runs" / RUN
    output_dir = (folder / output).resolve()
    make_run(tmp_path / "runs", RUN, ranks=1, nodes=1, seconds=1, output_dir=str(output_dir), **changes)
    output_dir.mkdir(parents=True)
    result = CliRunner().invoke(make_app(), ["attach", "--show", "none", "--runs-dir", str(tmp_path / "runs")])
    assert result.exit_code == 0, result.output
    first, *_, output_line, details = result.output.splitlines()
    assert first == f"run: {RUN} in {tmp_path}/runs"
    assert output_line == f"output: {output_dir}"
    assert details == f"details: orch report {RUN} --runs-dir {tmp_path}/runs"  # `last` may be another run by then


READ = "import sys; from ansible.cli import CLI; print(CLI.get_password_from_file(sys.argv[1]))"


def test_ansible_reads_the_password_from_a_file_that_is_in_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no file can stay in a folder when a signal ends the program."""
    monkeypatch.setattr("getpass.getpass", lambda prompt: "open-sesame")
    with become_password(is_interactive=True) as variables:
        (path,) = map(Path, variables.values())
        process = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True)
        assert process.stdout == "open-sesame\n", process.stderr
        assert path.stat().st_nlink == 0
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
