"""Slurm as the programs of a job use it; and its launcher: `node.py slurm-ranks RUN_DIR --pmi=NAME -- COMMAND`."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from orch_node import atomic_write
from orch_node.batch.system import NodeSystem, run
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.batch import Submitted
from orch_node.reach import BY_STEP

# Steps share all cores with the step that holds the agents. Slurm must not end any rank by itself, so that orch
# can report which rank has failed first.
STEP = ("--overlap", "--cpu-bind=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL")
# The same options as environment variables, for steps that hydra starts.
VARIABLES = {
    "SLURM_OVERLAP": "1",
    "SLURM_CPU_BIND": "none",
    "SLURM_NO_KILL": "set",
    "SLURM_KILL_BAD_EXIT": "0",
    "SLURM_WAIT": "0",
    "SLURM_MPI_TYPE": "none",
}
BATCH_STEP = "4294967291"  # the id of a batch script's own step
STEP_VARIABLE = re.compile(r"SLURM_(STEP|NTASKS|NPROCS|NNODES|TASKS_PER_NODE|DISTRIBUTION|CPU_BIND|MPI_TYPE)")
NODE_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")
REQUEUE_SECONDS = 60.0  # after which Slurm has ended a requeued job
# The messages of Slurm when it ends processes that use too much memory, with and without cgroups.
MEMORY_LINE = re.compile(
    r"(?:slurmstepd|srun|slurmd)\b.*?"
    r"(?:exceeded (?:\w+ )?memory limit|out[- ]of[- ]memory|oom[-_ ]kill|exceeded \w+ memory)",
    re.IGNORECASE,
)
MEMORY_FIGURES = re.compile(r"\([0-9]+ ?> ?[0-9]+\)")  # how much the processes used, and their limit
# srun reads these variables of the job as --nodes, which contradicts the list of hosts.
NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
HOSTS = "srun-hosts"  # a line for each rank
# How ranks of MPI find each other, in the order of preference. Without it only ranks that do not
# use MPI can start.
PMI = ("pmi2", "pmix")
UNRELIABLE_PMI = ("pmix",)  # listed even if the library that it needs is not installed


def cpu_counts(text: str) -> list[int]:
    """Return the CPUs of each node in SLURM_JOB_CPUS_PER_NODE: `2(x3),4` describes four nodes."""
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in groups for _ in range(int(times or 1))]


def one_task_each(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the options of srun for a step with one task on each of these nodes of the job."""
    count = str(len(nodes))
    options = ("--nodes", count, "--ntasks", count, "--ntasks-per-node", "1", "--mpi=none")
    # A run in a held allocation may use its first nodes only. The list of all nodes of a large job
    # would be longer than an argument may be.
    is_part = os.environ.get("SLURM_JOB_NUM_NODES", count) != count
    return (*options, "--nodelist", ",".join(nodes)) if is_part else options


class SlurmNodes(NodeSystem):
    """Slurm as the programs of a job use it."""

    name = "slurm"
    title = "Slurm"
    cores_hint = "--slurm cpus-per-task=N or --slurm exclusive"
    bf16_hint = "--slurm constraint=FEATURE"
    memory_hint = "--slurm mem="

    def prepare(self) -> None:
        """Remove the variables of the Slurm step in which this program runs, if there is one, and the user's clusters.

        The steps that it starts would read the step's variables as their options. With SLURM_CLUSTERS, scontrol and
        squeue need slurmdbd, and look for this job's number on all these clusters.
        """
        os.environ.pop("SLURM_CLUSTERS", None)
        if os.environ.get("SLURM_STEP_ID", BATCH_STEP) != BATCH_STEP:
            for name in [name for name in os.environ if STEP_VARIABLE.match(name)]:
                del os.environ[name]

    def node_name(self) -> str:
        return os.environ["SLURMD_NODENAME"]

    def node_names(self) -> list[str]:
        """Return the names of the job's nodes in Slurm's order.

        Raises:
            OSError: if scontrol does not print them.
        """
        result = run("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"])
        if result.returncode != 0 or not result.stdout.split():
            raise OSError(f"scontrol does not list the nodes of the job: {result.stderr.strip()}")
        return result.stdout.split()

    def address_of(self, node: str) -> str:
        """Return the address by which Slurm itself reaches a node, or ''."""
        match = NODE_ADDRESS.search(run("scontrol", "show", "node", "--oneliner", node).stdout)
        return match[1] if match else ""

    def granted_cpus(self, available: int) -> int:
        """Return the number of CPUs that the job has on this node."""
        number = int(os.environ.get("SLURM_NODEID", "0"))
        counts = cpu_counts(os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        return min(counts[number], available) if number < len(counts) else available

    def start_on_nodes(
        self, nodes: Sequence[str], name: str, command: Sequence[str], env: Mapping[str, str], log: BinaryIO
    ) -> subprocess.Popen[bytes]:
        """Start a command on each node, as one step."""
        return subprocess.Popen(
            ["srun", *STEP, *one_task_each(nodes), f"--job-name={name}", *command],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def launcher_environment(self) -> dict[str, str]:
        """Return the variables with which launchers start steps of Slurm."""
        step = shlex.join(["srun", *STEP, "--mpi=none", "--nodes=1", "--ntasks=1", "--nodelist={node}"])
        return {**VARIABLES, BY_STEP: step}

    def submission(self) -> Submitted:
        """Return the number of this job, and how often Slurm has restarted it."""
        return Submitted(os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", "0")))

    def is_running(self) -> bool:
        """Return whether the job runs: requeueing a job that was cancelled would start it again."""
        listed = run("squeue", "--noheader", "--all", "--format=%T", "--jobs", os.environ["SLURM_JOB_ID"])
        states = listed.stdout.split()
        return not states or "RUNNING" in states

    def requeue(self, run_dir: Path) -> str:
        """Put the job back into the queue, which ends this start of it; return '' or why that fails."""
        result = self.request("scontrol", "requeue", os.environ["SLURM_JOB_ID"])
        if result.returncode > 0:
            return result.stderr.strip() or f"scontrol ended with exit code {result.returncode}"
        # Until Slurm has requeued the job, an exit would count as a failure of the job.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(REQUEUE_SECONDS)
        return ""

    def memory_line(self, text: str) -> str:
        """Return the last line in which Slurm reports that memory ran out, or ''.

        Lines with figures are preferred: they name the node that exceeded its limit, while all nodes of
        the job print the others.
        """
        lines = [line.strip() for line in text.splitlines() if MEMORY_LINE.search(line)]
        return next(reversed([line for line in lines if MEMORY_FIGURES.search(line)] or lines), "")


SYSTEM = SlurmNodes()


def main(argv: list[str]) -> NoReturn:
    """Replace this process with srun, which starts the ranks.

    This is the launcher `srun`, on node0. Nodes and their numbers of ranks come from layout.json, which a
    restart may have changed. srun starts one task per rank in the layout's order.
    """
    run_dir, requested_pmi, command = Path(argv[0]), argv[1].partition("=")[2], argv[3:]
    layout = layouts.parse((run_dir / files.LAYOUT).read_text())
    atomic_write.write(run_dir / HOSTS, "".join(f"{placement.node}\n" for placement in layout.ranks))
    for name in (*VARIABLES, *NODES):
        os.environ.pop(name, None)
    os.environ["SLURM_HOSTFILE"] = str(run_dir / HOSTS)
    pmi = choose_pmi() if requested_pmi == "auto" else requested_pmi
    options = (f"--ntasks={layout.world_size}", "--distribution=arbitrary", "--unbuffered", "--job-name=orch-ranks")
    os.execvp("srun", ["srun", *STEP, *options, f"--mpi={pmi}", *command])


def choose_pmi() -> str:
    """Return the first plug-in that srun lists and that works, or none."""
    listed = run("srun", "--mpi=list")
    listed_pmi = [name for name in PMI if name in (listed.stdout + listed.stderr).split()]
    return next((name for name in listed_pmi if name not in UNRELIABLE_PMI or works(name)), "none")


def works(name: str) -> bool:
    """Return whether srun can start a task with this plug-in."""
    return run("srun", *STEP, "--nodes=1", "--ntasks=1", f"--mpi={name}", "true").returncode == 0
