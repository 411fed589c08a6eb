"""Check how the programs of a job of PBS read their allocation, and how they start others on its nodes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from orch_node import program
from orch_node.batch import pbs, system
from orch_node.protocol import batch

from orchestrator.files import LIB
from tests.support.files import write_program

# What pbs_tmrsh does: another environment, no standard input, and the exit code of the command.
TMRSH = """#!/bin/sh
echo "$*" >> {log}
shift
exec env -i PATH=/bin:/usr/bin PBS_NODENUM=1 PBS_JOBID=7.pbs1 "$@" < /dev/null
"""


@pytest.fixture
def tmrsh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a pbs_tmrsh that runs everything here into PATH, and return the file with its arguments."""
    log = tmp_path / "tmrsh.log"
    program_file = write_program(tmp_path / "bin" / "pbs_tmrsh", TMRSH.format(log=log))
    monkeypatch.setenv("PATH", f"{program_file.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ORCH_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("FROM_JOB", "setup")
    return log


def test_time_seconds_reads_a_walltime() -> None:
    for text, seconds in (("00:00:10", 10), ("26:01:00", 93_660), ("90", 90), ("abc", None)):
        assert pbs.time_seconds(text) == seconds


def test_checkpoint_before_the_time_limit_counts_the_time_of_setup_commands(tmp_path: Path) -> None:
    """Let a script that has slept become the program, as the script of a job does."""
    jobs = '{"Jobs": {"7.pbs1": {"Resource_List": {"walltime": "00:10:00"}}}}'
    write_program(tmp_path / "qstat", f"#!/bin/sh\necho '{jobs}'\n")
    code = (
        "import threading; from orch_node.batch.pbs import SYSTEM; SYSTEM.prepare(); "
        "print(*(thread.interval for thread in threading.enumerate() if isinstance(thread, threading.Timer)))"
    )
    variables = {"PBS_JOBID": "7.pbs1", "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(LIB)}
    script = f"sleep 2; exec {sys.executable} -c '{code}'"
    result = subprocess.run(["sh", "-c", script], env={**os.environ, **variables}, capture_output=True, text=True)
    assert 400 < float(result.stdout) <= 600 - 150 - 2, result


def test_cpu_counts_reads_the_cores_of_each_node() -> None:
    for hosts, vnodes, placement, expected in (
        ("pbs1/0+pbs2/0", "(pbs1:ncpus=1)+(pbs2:ncpus=1)", "scatter", [1, 1]),  # one-core-each
        ("n1/0*4+n2/1*2", "(n1[0]:ncpus=2:mem=1kb+n1[1]:ncpus=2)+(n2:ncpus=2)", "scatter", [4, 2]),  # several-vnodes
        ("pbs1/0+pbs2/0", "(pbs1:ncpus=1)+(pbs2:ncpus=1)", "scatter:excl", [0, 0]),  # whole-nodes
        ("", "", "", []),  # unknown
    ):
        fields = {"exec_host": hosts, "exec_vnode": vnodes, "Resource_List": {"place": placement}}
        assert pbs.cpu_counts(fields) == expected


def test_a_remote_command_has_input_output_environment_and_exit_code(tmrsh: Path) -> None:
    script = "read line; echo $line $FROM_JOB $PBS_NODENUM; cat; echo end; exit 7"
    command = program.command("pbs", "remote", "localhost", "sh", "-c", script)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    os.write(process.stdin.fileno(), b"one\n")
    assert select.select([process.stdout], [], [], 30)[0], "no output before the end of the command"
    output, _ = process.communicate(b"two\n", timeout=60)
    assert (output, process.returncode) == (b"one setup 1\nend\n", 7)
    assert not list(tmrsh.parent.glob(".task-*"))


def test_the_launcher_of_mpich_starts_a_quoted_program(tmrsh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmrsh.parent)
    starter = pbs.SYSTEM.launcher_environment()["HYDRA_LAUNCHER_EXEC"]
    subprocess.run([starter, "pbs2", '"/bin/true"', "--control-port", "pbs1:1 2"], check=True)
    assert tmrsh.read_text() == "pbs2 /bin/true --control-port pbs1:1 2\n"


def test_a_remote_command_ends_with_the_program_that_has_started_it(tmrsh: Path) -> None:
    command = program.command("pbs", "remote", "localhost", "sh", "-c", "cat; echo > ended")
    process = subprocess.Popen(
        command, cwd=tmrsh.parent, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    process.stdin.close()
    process.wait(60)
    assert (tmrsh.parent / "ended").exists()


def test_tasks_run_on_each_node_and_their_secrets_are_private(tmrsh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodefile = tmrsh.parent / "nodes"
    nodefile.write_text("n1\nn1\nn2\n")
    monkeypatch.setenv("PBS_NODEFILE", str(nodefile))
    fields = {"exec_host": "n1/0*2+n2/0", "exec_vnode": "(n1:ncpus=2)+(n2:ncpus=1)"}
    monkeypatch.setattr(pbs, "first_query", lambda: fields)
    command = ["sh", "-c", 'echo "$ORCH_PBS_NODE $ORCH_PBS_CPUS $KEY"']  # one write: the tasks share the log
    with (tmrsh.parent / "agents.log").open("ab") as log:
        process = pbs.SYSTEM.start_on_nodes(pbs.SYSTEM.node_names(), "agents", command, {"KEY": "secret"}, log)
    assert process.wait(60) == 0
    assert sorted((tmrsh.parent / "agents.log").read_text().splitlines()) == ["n1 2 secret", "n2 1 secret"]
    assert "secret" not in tmrsh.read_text()


def test_a_task_file_can_be_read_by_the_user_alone_and_is_deleted_at_once(tmp_path: Path) -> None:
    env = {**os.environ, "KEY": "secret"}
    path = pbs.write_task(tmp_path, pbs.Task(("ls", "-A"), env, str(tmp_path), log=str(tmp_path / "log")))
    assert path.stat().st_mode & 0o777 == 0o600
    subprocess.run(program.command("pbs", "task", str(path)), check=True)
    assert (tmp_path / "log").read_text() == "log\n", "the file exists only until the program starts"


def test_a_server_that_has_not_responded_is_queried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let qstat fail once; a job without its response knows neither its time limit nor its cores.

    It prints a folder with an umlaut in its own encoding.
    """
    qstat = f'#!/bin/sh\ncat {tmp_path}/response 2>&- || {{ echo "$RESPONSE" > {tmp_path}/response; exit 255; }}\n'
    monkeypatch.setenv("PATH", f"{write_program(tmp_path / 'bin' / 'qstat', qstat).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PBS_JOBID", "7.pbs1")
    monkeypatch.setenv("RESPONSE", '{"Jobs": {"7.pbs1": {"run_count": 3, "jobdir": "^\x03^\udcfc"}}}')
    monkeypatch.setattr(pbs, "RETRY_SECONDS", 0.1)
    pbs.first_query.cache_clear()
    assert pbs.SYSTEM.submission().restarts == 2
    pbs.first_query.cache_clear()


HELD = "#PBS -h\n#PBS -W depend=afterok:1\n#PBS -a 1200\n"  # for the first job only


@pytest.fixture
def resubmission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run whose job can be submitted again, and put a qsub into PATH that fails once."""
    script = tmp_path / "job.sh"
    options = f"#PBS -N orch-x\n#PBS -l select='2:ncpus=1'\n#PBS -J 0-3%2\n{HELD}"
    script.write_text(f"#!/bin/bash\n{options}# ranks: 2\nexec orch\n")
    fail_once = "[ -e tried ] || { touch tried; echo qsub: cannot connect to server pbs1 >&2; exit 1; }"
    text = f'#!/bin/sh\ncd {tmp_path}\n{fail_once}\necho "$*" > qsub.log\necho 8.pbs1\n'
    qsub = write_program(tmp_path / "bin" / "qsub", text)
    monkeypatch.setattr(system, "RETRY_SECONDS", 0.1)
    monkeypatch.setenv("PATH", f"{qsub.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PBS_JOBID", "7.pbs1")
    monkeypatch.delenv(pbs.RESTARTS, raising=False)
    monkeypatch.setattr(pbs, "first_query", lambda: {})
    return tmp_path


def test_a_preempted_job_submits_and_records_the_next(resubmission: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pbs.SYSTEM.requeue(resubmission) == ""
    options = (resubmission / "qsub.log").read_text()
    assert options.startswith("-f -N orch-x -l select=2:ncpus=1 -v ORCH_JOB_RESTARTS=1 ")
    assert options.endswith(f"-- /bin/bash -l {resubmission}/job.sh {resubmission}/job.sh\n")
    recorded = batch.parse_submitted((resubmission / "pbs-job.json").read_bytes())
    assert (recorded.job, recorded.restarts) == ("8.pbs1", 1)
    # A task of an array is submitted as a single job with the script of the array.
    monkeypatch.setenv("PBS_ARRAY_INDEX", "3")
    run_dir = resubmission.with_name(f"{resubmission.name}-3")
    run_dir.mkdir()
    assert pbs.SYSTEM.requeue(run_dir) == ""
    options = (resubmission / "qsub.log").read_text()
    assert "-N orch-x-3 -l select=2:ncpus=1 -v ORCH_JOB_RESTARTS=1,PBS_ARRAY_INDEX=3" in options
    assert options.endswith(f"{resubmission}/job.sh\n")
    assert "-J" not in options


def test_a_job_that_pbs_ends_is_not_submitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for fields, is_running in (
        ({"job_state": "R", "substate": 42, "comment": "Job run at Tue Nov 24 at 10:18 on (pbs1:ncpus=1)"}, True),
        ({"job_state": "R", "substate": 42, "comment": "Job run at X on (pbs1:ncpus=1) and terminated by a@b"}, False),
        ({"job_state": "R", "substate": 60}, False),  # requeued
        ({"job_state": "Q", "substate": 10}, False),  # queued
        ({}, True),  # unknown
    ):
        monkeypatch.setattr(pbs, "query", partial(dict, fields))
        assert pbs.SYSTEM.is_running() is is_running


def test_a_launcher_joins_the_job_before_it_starts(resubmission: Path) -> None:
    text = f'#!/bin/sh\necho "$*" > {resubmission}/attach.log\nexit 1\n'
    write_program(resubmission / "bin" / "pbs_attach", text)
    command = program.command("pbs", "attached", "sh", "-c", "echo $$")
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (resubmission / "attach.log").read_text() == f"-j 7.pbs1 -p {result.stdout}"
