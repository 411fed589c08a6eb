"""A run on Slurm begins: its script is handed in."""

from __future__ import annotations

import shutil
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import OrchError
from orchestrator.planning.plan import Plan
from orchestrator.runs import store
from orchestrator.targets.connections.local import Local
from orchestrator.targets.execute import execute
from orchestrator.targets.slurm.location import submitted
from orchestrator.targets.slurm.scheduler import Scheduler
from orchestrator.targets.slurm.watch import keep


def start(plan: Plan, folder: Path) -> RunRecord:
    """Record the plan and hand its script in; -> its record. It lives on without this program."""
    store.create(plan, folder)
    scheduler = Scheduler(Local())
    try:
        execute(plan, {}, submitter=scheduler)
    except OrchError:
        shutil.rmtree(folder, ignore_errors=True)  # nothing was started
        raise
    record = submitted(plan.run, scheduler.submitted)
    keep(record, folder)
    return record
