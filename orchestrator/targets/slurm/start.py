"""A run on Slurm begins: its script is handed in."""

from __future__ import annotations

import shutil
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import OrchError
from orchestrator.planning.plan import SCRIPT, Plan
from orchestrator.runs import store
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.execute import execute
from orchestrator.targets.slurm.location import location_of, submitted
from orchestrator.targets.slurm.login import host_at, scheduler_at
from orchestrator.targets.slurm.run_folder import keep_there, remove_there
from orchestrator.targets.slurm.watch import keep


def start(plan: Plan, folder: Path) -> RunRecord:
    """Record the plan and hand its script in; -> its record. It lives on without this program."""
    store.create(plan, folder)
    host = host_at(location_of(plan.run).login)
    scheduler = scheduler_at(host)
    try:
        execute(plan, {at.node: host for step in plan.steps for at in step.nodes},
                submitter=scheduler)  # fmt: skip
        record = submitted(plan.run, scheduler.submitted)
        keep(record, folder)
        if isinstance(host, Ssh):
            keep_there(record, host)
    except OrchError:
        if not scheduler.submitted:  # nothing was started
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(host, Ssh):
                remove_there(plan.run.run_dir, host, (SCRIPT,))
        raise
    finally:
        host.close()
    return record
