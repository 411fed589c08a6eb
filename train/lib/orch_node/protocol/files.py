"""Names of runs and of files on nodes, and the hash of a folder, by which others know that theirs has the same content.

A name from another process becomes part of a path, so it is checked here first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

# In the run's folder.
LAYOUT = "layout.json"
ENVIRONMENT = "env.json"
CONTAINER = "container.json"
BATCH_SYSTEM = "batch_system.py"  # the module of a package that adds a batch system
RECORD = "run.json"
HOSTFILE = "hostfile"
SUPERVISOR = "supervisor.json"
SUPERVISOR_LOG = "supervisor.log"
EVENTS = "events.jsonl"
LAUNCHER_LOG = "launcher.log"
OUTCOME = "outcome.json"
PRECISION = "precision.txt"  # in the output folder: the precision that the ranks chose
STOP = "stop"  # exists once the run is asked to stop
LEASE = "lease.json"  # names the supervisor that writes here
PROJECT = "project"  # a folder: the copy of the user's project
SENT_PROJECT = "project.txt"  # holds the path of the project in the node's store, as it was sent
RECEIVED = "received.json"  # the files that node0 has given to this node, with their hashes
BINDINGS = "ccl-bindings"  # a folder: links to the bindings of the stack, for ranks on the user's Python
PLAN = "plan.json"  # written by a controller that shares the folder
RANKS = "ranks"
STACK_TRACES = "stacks"
# Names with the number of a rank in place of the braces.
RANK_LOG = RANKS + "/rank-{}.log"
RANK_TIMES = RANKS + "/rank-{}.times"  # the times at which the log was written
RANK_METRICS = RANKS + "/rank-{}.metrics.jsonl"
PREEMPTED_MARK = RANKS + "/.made-room-{}"  # exists once the rank is preempted
FINISHED_MARK = RANKS + "/.finished-{}"  # exists while a rank that has finished its script leaves the group
# The local folder for the logs of ranks that have moved from a node, whose name is in place of the braces, or to it.
MOVED_LOGS = RANKS + "/{}"
EQUAL_WEIGHTS = f"{RANKS}/.equal-weights"  # exists once ranks of the node have started with equal weights
HANDED_LOGS = "handed-logs.jsonl"  # the small logs of other nodes, which their agents have handed to node0

# Next to train/, written by `orch provision`: variables of the cluster, and secrets.
SECRETS = "secrets.json"
PROVISIONED = ("env.json", SECRETS)

# Kinds of files, apart from plain files, whose kind is empty.
EXECUTABLE, LINK = "executable", "symlink"

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
OF_RANK = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.(?:log|times|metrics\.jsonl)", re.ASCII)
SAVED_OUTCOME = re.compile(r"outcome-[0-9]{1,9}\.json", re.ASCII)  # of a start of a job, before it was requeued
JOB_OUTPUT = re.compile(r"[a-z]+-[0-9_]+\.out", re.ASCII)  # of a job of a batch system
STACK_TRACE = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.txt", re.ASCII)


def is_run_id(name: str) -> bool:
    """Return whether this can be the name of a run, of its folder, and an argument of programs."""
    return RUN_ID.fullmatch(name) is not None


def newest(names: Iterable[str], pattern: re.Pattern[str]) -> str:
    """Return the matching name with the highest number, or ''."""
    return max((name for name in names if pattern.fullmatch(name)), key=lambda name: (len(name), name), default="")


def rank_of(name: str, pattern: re.Pattern[str] = OF_RANK) -> int | None:
    """Return the rank of a file in `ranks/`, or None for any other name."""
    match = pattern.fullmatch(name)
    return int(match.group(1)) if match else None


class FileEntry(NamedTuple):
    """A file in a folder.

    Attributes:
        name: the path below the folder.
        kind: EXECUTABLE, LINK or ''.
        sha256: of the content, or of the target's path for a link.
    """

    name: str
    kind: str
    sha256: str


def folder_hash(files: Iterable[FileEntry]) -> str:
    """Return the SHA-256 of a folder, in hexadecimal digits."""
    digest = hashlib.sha256()
    for entry in sorted(files):
        digest.update("\0".join(entry).encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()
