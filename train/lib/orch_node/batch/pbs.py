"""PBS as the programs of a job use it, and the programs that it starts on other nodes.

PBS's own program for that, pbs_tmrsh, passes on neither the environment nor standard input, and its output cannot be
captured. So a task file in the run's folder, which only the user can read and the program deletes, has all that a
program needs:

- `node.py pbs tasks NODE FILE...` starts a program on each of several nodes, and lasts until all have ended.
- `node.py pbs remote NODE COMMAND` starts a command on a node and passes on the first line of standard input, its end,
  the output of the command and the exit code; it does so through files in the run's folder.
- `node.py pbs task FILE` is what both start there.
- `node.py pbs attached COMMAND` starts a launcher on this node so that PBS knows its processes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from orch_node import atomic_write, program
from orch_node.batch.system import NodeSystem, clock_seconds, run
from orch_node.protocol import batch, values
from orch_node.protocol.batch import Submitted
from orch_node.reach import BY_STEP, JOINING

# The ranks get 120 s before the time limit for a checkpoint; PBS looks at the limit every 10 to 120 s.
CHECKPOINT_SECONDS = 150
RESTARTS = "ORCH_JOB_RESTARTS"  # how often the run was submitted again; PBS cannot requeue a job for its user
NODE, CPUS = "ORCH_PBS_NODE", "ORCH_PBS_CPUS"  # of a task: the name of its node, and the job's CPUs there, 0 for all
SETTINGS = Path("/etc/pbs.conf")
# qstat prints without quotes what strtod() reads as a number, such as an account inf, a user nan or a project 00.
NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[-+]?\d+)?"
BARE_TEXT = re.compile(rf'^(\s*"[^"\n]+":[ \t]*)(?!(?:{NUMBER}|null),?$)([^\s"{{[].*?)(,?)$', re.MULTILINE)
TICK_SECONDS = 0.5
# PBS would copy the output of a job to the host that submitted it, and retry that for a minute if it needs a key.
NO_OUTPUT = ("-j", "oe", "-k", "n", "-o", "localhost:/dev/null")
NOT_REPEATED = ("-J ", "-h", "-a ", "-W depend=")  # options that a job does not have when it is submitted again
RETRY_SECONDS = 5.0  # if the server does not respond
RUNNING = 42  # the substate of a job that runs; that of one that PBS requeues is 60 to 63
DELETED = " and terminated by "  # in the comment of a job that a user has deleted, also while it still runs


# MPICH's hydra quotes the program for a shell on the other node, but pbs_tmrsh starts the program without a shell.
UNQUOTING_TMRSH = """#!/bin/sh
node=$1 program=${{2#\\"}}
shift 2
exec {tmrsh} "$node" "${{program%\\"}}" "$@"
"""


# The job.


def program_path(name: str) -> str:
    """Return the path of one of PBS's programs, which are not in the PATH of every job."""
    with contextlib.suppress(OSError):
        settings = Path(os.environ.get("PBS_CONF_FILE", SETTINGS)).read_text()
        prefix = re.search(r"^\s*PBS_EXEC=(\S+)", settings, re.MULTILINE)
        if prefix and not shutil.which(name):
            return f"{prefix[1]}/bin/{name}"
    return name


def quote_texts(document: str) -> str:
    """Return a document of qstat as JSON, with quotes around texts that look like numbers."""
    return BARE_TEXT.sub(r'\1"\2"\3', document)


def query() -> dict[str, Any]:
    """Return what qstat reports about this job, or nothing if it cannot be had."""
    job = os.environ["PBS_JOBID"]
    with contextlib.suppress(ValueError, AttributeError):
        output = run(program_path("qstat"), "-f", "-F", "json", job).stdout
        return dict(json.loads(quote_texts(output), strict=False)["Jobs"].get(job, {}))
    return {}


@functools.cache
def first_query() -> dict[str, Any]:
    """Return what query() returns of what does not change while the job runs; retry if the server does not respond."""
    for _ in range(2):
        if fields := query():
            return fields
        time.sleep(RETRY_SECONDS)
    return query()


def time_seconds(text: str) -> int | None:
    """Return the seconds of a time as PBS writes it, [[HH:]MM:]SS, or None if it is invalid."""
    clock = text.split(".")[0]
    return clock_seconds(clock, 60 ** clock.count(":"))


def process_seconds() -> float:
    """Return the age of this process, which began as the script of the job."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def cpu_counts(fields: Mapping[str, Any]) -> list[int]:
    """Return the CPUs of the job on each of its nodes, 0 for all of them, as qstat reports them."""
    hosts = [chunk.split("/")[0] for chunk in str(fields.get("exec_host", "")).split("+") if chunk]
    chunks = re.findall(r"\(([^()]*)\)", str(fields.get("exec_vnode", "")))
    is_exclusive = "excl" in str(fields.get("Resource_List", {}).get("place", ""))
    counts = dict.fromkeys(hosts, 0)
    for host, chunk in zip(hosts, chunks) if not is_exclusive else ():
        counts[host] += sum(map(int, re.findall(r":ncpus=(\d+)", chunk)))
    return list(counts.values())


def options_again(script: str, index: str) -> list[str]:
    """Return the options of a script to submit it again; of an array for its task with this index alone.

    The options that delay the start are those of the first job only.
    """
    lines = [line.removeprefix("#PBS ") for line in script.splitlines() if line.startswith("#PBS ")]
    options = [word for line in lines if not line.startswith(NOT_REPEATED) for word in shlex.split(line)]
    if index and "-N" in options:
        options[options.index("-N") + 1] += f"-{index}"
    return options


# Programs on other nodes.


@dataclass(frozen=True)
class Task:
    """A program that runs on other nodes of the job, and what it needs there."""

    command: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    log: str  # the file for its output
    line: str = ""  # the first line of its standard input
    alive: str = ""  # the file that exists as long as its standard input is open; '' if it has none


def write_task(folder: Path, task: Task) -> Path:
    """Write a task to a new file that only the user can read, and return its path."""
    with tempfile.NamedTemporaryFile("w", prefix=".task-", dir=folder, delete=False) as file:
        file.write(values.render(task))
    return Path(file.name)


def start_task(path: Path, node: str) -> subprocess.Popen[bytes]:
    """Start a task on a node of the job."""
    command = [program_path("pbs_tmrsh"), node, *program.command("pbs", "task", str(path))]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def run_tasks(argv: list[str]) -> int:
    """Start a task on each of several nodes, and return 0 once all of them have succeeded."""
    paths = dict(zip(argv[::2], map(Path, argv[1::2])))
    try:
        codes = [process.wait() for process in [start_task(path, node) for node, path in paths.items()]]
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)
    return int(any(codes))


def run_task(argv: list[str]) -> int:
    """Run a task on this node, and delete its file, which PBS could end the job too suddenly to delete later."""
    path = Path(argv[0])
    task = values.parse(Task, path.read_text(), argv[0])
    path.unlink(missing_ok=True)
    local = {name: value for name, value in os.environ.items() if name.startswith("PBS_") or name == "TMPDIR"}
    env = {**task.env, **local}
    os.chdir(task.cwd)
    log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if not task.alive:
        os.execvpe(task.command[0], task.command, env)
    child = subprocess.Popen(task.command, env=env, stdin=subprocess.PIPE)
    assert child.stdin is not None
    with contextlib.suppress(OSError), child.stdin as pipe:
        pipe.write(task.line.encode())
        pipe.flush()
        while child.poll() is None and exists(task.alive):
            with contextlib.suppress(OSError):  # a full disk does not end the task
                os.fsync(1)  # other hosts see on a shared file system what is written there
            time.sleep(TICK_SECONDS)
    code = child.wait()
    return code if code >= 0 else 128 - code


def exists(path: str) -> bool:
    """Return whether a file exists; opening it makes a shared file system look for it again."""
    try:
        Path(path).read_bytes()
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


def copy_output(path: str, position: int) -> int:
    """Write a file from a position on to standard output; return the position of its end."""
    with open(path, "rb") as file:  # opened each time, as in exists()
        file.seek(position)
        position += sys.stdout.buffer.write(file.read())
    sys.stdout.flush()
    return position


def run_remote(argv: list[str]) -> int:
    """Run a command on a node as if it were here; return its exit code."""
    node, command = argv[0], argv[1:]
    line = sys.stdin.buffer.readline().decode()
    new_file = functools.partial(tempfile.NamedTemporaryFile, prefix=".task-", dir=os.environ["ORCH_RUN_DIR"])
    with new_file() as output:
        with new_file() as alive:
            env = {**os.environ, NODE: node, CPUS: "0"}
            task = Task(tuple(command), env, os.getcwd(), output.name, line=line, alive=alive.name)
            path = write_task(Path(alive.name).parent, task)
            remote, position = start_task(path, node), 0
            while remote.poll() is None:
                position = copy_output(output.name, position)
                if select.select([0], [], [], TICK_SECONDS)[0] and not os.read(0, 1 << 16):
                    break
        code = remote.wait()
        path.unlink(missing_ok=True)
        copy_output(output.name, position)
    return code


def run_attached(argv: list[str]) -> int:
    """Replace this process, which leads a new session, with a command whose session belongs to the job.

    PBS counts the memory and the time of these sessions only, and ends them with the job.
    """
    run(program_path("pbs_attach"), "-j", os.environ["PBS_JOBID"], "-p", str(os.getpid()))
    os.execvp(argv[0], argv)


class PbsNodes(NodeSystem):
    """PBS as the programs of a job use it; memory that ran out is reported only by the exit status of a job."""

    name = "pbs"
    title = "PBS"
    cores_hint = "--pbs select=ncpus=N"
    bf16_hint = "--pbs select=RESOURCE=VALUE"
    memory_hint = "--pbs select=mem=SIZE"

    def prepare(self) -> None:
        """Have the ranks write a checkpoint before the job reaches its time limit.

        PBS warns only when the limit is over, 10 seconds before it kills the job.
        """
        limit = time_seconds(str(first_query().get("Resource_List", {}).get("walltime", "")))
        if limit is not None:
            remaining = limit - process_seconds()  # setup commands may have taken minutes
            delay = remaining - min(CHECKPOINT_SECONDS, remaining / 2)  # half of a short time is for training
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGTERM))
            timer.daemon = True
            timer.start()

    def node_name(self) -> str:
        return os.environ[NODE]

    def node_names(self) -> list[str]:
        """Return the names of the job's nodes, node0 first.

        Raises:
            OSError: if PBS's list of them cannot be read.
        """
        return list(dict.fromkeys(Path(os.environ["PBS_NODEFILE"]).read_text().split()))

    def granted_cpus(self, available: int) -> int:
        """Return the number of CPUs that the job has on this node."""
        return min(int(os.environ.get(CPUS, "0")) or available, available)

    def start_on_nodes(
        self, nodes: Sequence[str], name: str, command: Sequence[str], env: Mapping[str, str], log: BinaryIO
    ) -> subprocess.Popen[bytes]:
        """Start a command on each node; the process ends when it has ended everywhere."""
        cpus = dict(zip(self.node_names(), cpu_counts(first_query())))
        folder = Path(log.name).parent
        arguments: list[str] = []
        for node in nodes:
            node_env = {**os.environ, **env, NODE: node, CPUS: str(cpus.get(node, 0))}
            task = Task(tuple(command), node_env, str(folder), log.name)
            arguments += [node, str(write_task(folder, task))]
        tasks = program.command("pbs", "tasks", *arguments)
        return subprocess.Popen(tasks, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def launcher_environment(self) -> dict[str, str]:
        """Return the variables with which launchers start processes on other nodes."""
        tmrsh = program_path("pbs_tmrsh")
        unquoting = Path("pbs-tmrsh").absolute()  # in the run's folder
        unquoting.write_text(UNQUOTING_TMRSH.format(tmrsh=shlex.quote(tmrsh)))
        unquoting.chmod(0o700)
        return {
            JOINING: shlex.join(program.command("pbs", "attached")),
            BY_STEP: shlex.join([*program.command("pbs", "remote"), "{node}"]),
            "I_MPI_HYDRA_BOOTSTRAP_EXEC": tmrsh,
            "HYDRA_LAUNCHER_EXEC": str(unquoting),
        }

    def submission(self) -> Submitted:
        """Return the id of this job, and how often the run or the job was started again."""
        runs = first_query().get("run_count", 1)
        reruns = int(runs) - 1 if str(runs).isdigit() else 0
        return Submitted(os.environ["PBS_JOBID"], int(os.environ.get(RESTARTS, "0")) + max(0, reruns))

    def is_running(self) -> bool:
        """Return whether the job runs: a job that was deleted, or that PBS itself requeues, must not be submitted."""
        fields = query()
        is_state_running = fields.get("job_state", "R") == "R" and fields.get("substate", RUNNING) == RUNNING
        return is_state_running and DELETED not in str(fields.get("comment", ""))

    def requeue(self, run_dir: Path) -> str:
        """Submit the job's script again, with the same options; return '' or why that fails.

        Only managers of PBS can requeue a job. The record of the new job in the run's folder makes orch follow it.
        """
        restarts = self.submission().restarts + 1
        index = os.environ.get("PBS_ARRAY_INDEX", "")
        script = run_dir / batch.SCRIPT
        if not script.exists():  # that of an array ID, of which this is the run ID-NUMBER
            script = Path(str(run_dir).rpartition("-")[0], batch.SCRIPT)
        variables = f"{RESTARTS}={restarts}" + (f",PBS_ARRAY_INDEX={index}" if index else "")
        options = options_again(script.read_text(), index)
        qsub = (program_path("qsub"), "-f", *options, "-v", variables, *NO_OUTPUT)
        result = self.request(*qsub, "--", "/bin/bash", "-l", *[str(script)] * 2)
        job = result.stdout.strip().splitlines()[-1:]
        if result.returncode != 0 or not job:
            return f"qsub: {result.stderr.strip() or f'exit code {result.returncode}'}"
        atomic_write.write(run_dir / batch.job_file("pbs"), f"{values.render(Submitted(job[0], restarts))}\n")
        return ""


SYSTEM = PbsNodes()
PROGRAMS = {"attached": run_attached, "tasks": run_tasks, "task": run_task, "remote": run_remote}


def main(argv: list[str]) -> int:
    """Run one of the programs of this module; return its exit code."""
    return PROGRAMS[argv[0]](argv[1:])
