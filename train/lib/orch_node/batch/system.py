"""What the programs of a job need to know of the batch system that runs it: one value for each system."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orch_node.protocol.batch import Submitted


@dataclass(frozen=True)
class NodeSystem:
    """A batch system as the programs on its nodes use it.

    The module orch_node.batch.NAME has it as SYSTEM. Its function main() is `node.py NAME-ranks`: the launcher that
    starts the ranks with the system's own programs.

    Attributes:
        name: the name of the system, as in run records: slurm, pbs.
        title: the name in messages: Slurm, PBS.
        starter: the program that starts other programs on the nodes, in messages.
        cores_hint: how a user requests more cores.
        bf16_hint: how a user requests nodes with BF16 instructions.
        memory_hint: the setting of the memory, in messages: `--slurm mem=`.

        prepare: called first in a job; removes what would change the programs that the job starts.
        node_name: returns the name of this node, also in a program that start_on_nodes has started.
        node_names: returns the names of the job's nodes, node0 first; raises OSError if they are unknown.
        address_of: returns the address by which the system reaches a node, or ''.
        granted_cpus: returns how many of the CPUs that this process may use the job has on this node, given
            their number.
        start_on_nodes: starts a command once on each node, given the nodes of the job, a name, the command,
            variables that it needs there besides the environment, and a file for the output. Returns
            a process that lasts until all of them have ended; its exit code is not 0 if one has failed.
        launcher_environment: returns the variables with which launchers start processes on other nodes.
            BY_STEP is the command for one node, with {node} in place of its name.
        submission: returns the id of this job, and how often it has been started again.
        is_running: returns whether the job runs; False if the system is ending it.
        requeue: makes the job of a run's folder start again, and returns '' or why that fails. It may wait for its
            own end, or submit another job and record it in the folder.
        output_file: returns the name of the file in the run's folder with the output of this job.
        memory_line: returns the last line of a text in which the system reports that memory ran out, or ''.
    """

    name: str
    title: str
    starter: str
    cores_hint: str
    bf16_hint: str
    memory_hint: str

    prepare: Callable[[], None]
    node_name: Callable[[], str]
    node_names: Callable[[], list[str]]
    address_of: Callable[[str], str]
    granted_cpus: Callable[[int], int]
    start_on_nodes: Callable[[Sequence[str], str, Sequence[str], Mapping[str, str], BinaryIO], subprocess.Popen[bytes]]
    launcher_environment: Callable[[], Mapping[str, str]]
    submission: Callable[[], Submitted]
    is_running: Callable[[], bool]
    requeue: Callable[[Path], str]
    output_file: Callable[[], str]
    memory_line: Callable[[str], str]

    @property
    def out_of_memory(self) -> str:
        """Return the message that a run was out of memory."""
        return f"it ran out of memory ({self.memory_hint})"


def find_system(name: str) -> NodeSystem:
    """Return the batch system of this name."""
    system: NodeSystem = importlib.import_module(f"orch_node.batch.{name}").SYSTEM
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
