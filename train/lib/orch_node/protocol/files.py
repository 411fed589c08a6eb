"""Names of runs, and of files on nodes. Who is told such a name by somebody else asks here whether
it is one: it becomes part of a path."""

from __future__ import annotations

import re

# In the run's folder.
LAYOUT = "layout.json"
ENVIRONMENT = "env.json"
CONTAINER = "container.json"
RECORD = "run.json"
HOSTFILE = "hostfile"
SUPERVISOR = "supervisor.json"
SUPERVISOR_LOG = "supervisor.log"
EVENTS = "events.jsonl"
LAUNCHER_LOG = "launcher.log"
OUTCOME = "outcome.json"
PRECISION = "precision.txt"  # in the output folder: what the ranks of a run have chosen
STOP = "stop"  # it was asked to stop
LEASE = "lease.json"  # which supervisor writes here now
PLAN = "plan.json"  # of the controller, where it shares the folder
RANKS = "ranks"
STACK_TRACES = "stacks"

# Beside train/, by `orch provision`: variables of the cluster, and secrets.
SECRETS = "secrets.json"
PROVISIONED = ("env.json", SECRETS)

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
OF_RANK = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.(?:log|metrics\.jsonl)", re.ASCII)
STACK_TRACE = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.txt", re.ASCII)


def is_run_id(name: str) -> bool:
    """Whether a run can be called so: the name of its folder, and an argument of programs."""
    return RUN_ID.fullmatch(name) is not None


def rank_of(name: str, pattern: re.Pattern[str] = OF_RANK) -> int | None:
    """The rank that a file in `ranks/` is of; None for any other name."""
    found = pattern.fullmatch(name)
    return int(found.group(1)) if found else None


def preempted_mark(rank: int) -> str:
    """The mark of a rank that has left its group in order to make room."""
    return f"{RANKS}/.made-room-{rank}"


def rank_log(rank: int) -> str:
    return f"{RANKS}/rank-{rank}.log"


def rank_metrics(rank: int) -> str:
    return f"{RANKS}/rank-{rank}.metrics.jsonl"
