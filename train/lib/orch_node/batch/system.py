"""What the programs of a job need to know of the batch system that runs it: one class for each system."""

from __future__ import annotations

import importlib
import re
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from orch_node.protocol import files
from orch_node.protocol.batch import JobConfig, Submitted

PROGRAM_SECONDS = 60.0  # for a program of the batch system to end
RETRIES, RETRY_SECONDS = 2, 10.0  # in the time that a preempted job has for its end
# What programs print if the system does not respond; a refusal is final.
NO_RESPONSE = re.compile(r"contact|connect to|communicat|timed out|zero bytes|standby|not responding", re.IGNORECASE)


class JobError(Exception):
    """The job cannot run its ranks. The text says why, and what to do."""


class NodeSystem(ABC):
    """A batch system as the programs on its nodes use it.

    The module orch_node.batch.NAME has an instance as SYSTEM; a package's module, which the job itself brings to the
    nodes, imports only the standard library and orch_node. If the system needs its own programs on the nodes, they are
    main() of orch_node.batch.NAME: `node.py slurm-ranks` starts the ranks with srun, `node.py pbs` reaches other nodes.

    Attributes:
        name: the name of the system, as in run records: slurm, pbs.
        title: the name in messages: Slurm, PBS.
        cores_hint: how a user requests more cores.
        bf16_hint: how a user requests nodes with BF16 instructions.
        memory_hint: the setting of the memory, in messages: `--slurm mem=`.
    """

    name: str
    title: str
    cores_hint: str
    bf16_hint: str
    memory_hint: str

    def node_name(self) -> str:
        """Return the name of this node, also in a program that start_on_nodes has started."""
        return socket.gethostname()

    @abstractmethod
    def node_names(self) -> list[str]:
        """Return the names of the job's nodes, node0 first.

        Raises:
            OSError: if they are unknown.
        """

    def granted_cpus(self, available: int) -> int:
        """Return how many of the available CPUs, which this process may use, the job has on this node."""
        return available

    @abstractmethod
    def start_on_nodes(
        self, nodes: Sequence[str], name: str, command: Sequence[str], env: Mapping[str, str], log: BinaryIO
    ) -> subprocess.Popen[bytes]:
        """Start a command once on each node, and return a process that lasts until all of them have ended.

        Its exit code is not 0 if one has failed.

        Args:
            nodes: the nodes of the job.
            name: the name of the programs.
            command: the command.
            env: variables that it needs there besides the environment.
            log: the file for the output.
        """

    def launcher_environment(self) -> Mapping[str, str]:
        """Return the variables with which launchers start processes on other nodes; by default, they use ssh.

        BY_STEP is the command for one node, with {node} in place of its name.
        """
        return {}

    @abstractmethod
    def submission(self) -> Submitted:
        """Return the id of this job, and how often it has been started again."""

    def is_running(self) -> bool:
        """Return whether the job runs; False if the system is ending it."""
        return True

    def requeue(self, run_dir: Path) -> str:
        """Make the job of a run's folder start again, and return '' or why that fails.

        This may wait for the end of the job, or submit another job and record it in the folder. It is called if
        can_resume() of the BatchSystem returns True.
        """
        return f"jobs of {self.title} cannot be requeued"

    def request(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the system, again if the system does not respond while the job runs."""
        result = run(*command)
        for _ in range(RETRIES):
            # A negative code means that the system has killed the program with the whole job.
            if result.returncode <= 0 or not NO_RESPONSE.search(result.stderr):
                break
            time.sleep(RETRY_SECONDS)
            result = run(*command) if self.is_running() else result
        return result

    def prepare(self) -> None:  # noqa: B027  mostly there is nothing to do
        """Remove what would change the programs that the job starts; called first in a job."""

    def address_of(self, node: str) -> str:
        """Return the address by which the system reaches a node, or ''."""
        return ""

    def memory_line(self, text: str) -> str:
        """Return the last line of a text in which the system reports that memory ran out, or ''."""
        return ""

    @property
    def out_of_memory(self) -> str:
        """Return the message that a run was out of memory."""
        return f"it ran out of memory ({self.memory_hint})"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a batch system; its exit code is 1 if it cannot be started or does not end."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",  # qstat prints a folder with an umlaut in no valid encoding
            stdin=subprocess.DEVNULL,
            timeout=PROGRAM_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def find_system(config: JobConfig) -> NodeSystem:
    """Return the batch system of a job, from a module of orch_node.batch or from a package's module in the settings."""
    if source := config.files.get(files.BATCH_SYSTEM):
        module = sys.modules[files.BATCH_SYSTEM] = ModuleType(files.BATCH_SYSTEM)
        exec(compile(source, files.BATCH_SYSTEM, "exec"), vars(module))  # noqa: S102  of the user's own installation
    else:
        module = importlib.import_module(f"orch_node.batch.{config.system}")
    system: NodeSystem = module.SYSTEM
    return system


def clock_seconds(text: str, unit: int) -> int | None:
    """Return the seconds of a time of up to three numbers, such as `1:30:00`; None if it is invalid.

    Args:
        text: the time; each number counts units of a 60th of those of the number before it.
        unit: the seconds that the first number counts.
    """
    numbers = text.split(":")
    if len(numbers) > 3 or not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
        return None
    seconds = 0
    for number in numbers:
        seconds, unit = seconds + int(number) * unit, unit // 60
    return seconds
