"""A request for a job -> its plan: the files that it names, and the stack that all nodes see."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.load.clusters import local_facts
from orchestrator.paths import TRAIN
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import TrainRequest
from orchestrator.runs.resume import plan_or_resume
from orchestrator.targets.identity import new_identity, run_id
from orchestrator.targets.slurm.load import slurm_settings
from orchestrator.targets.slurm.options import SlurmOptions
from orchestrator.targets.slurm.plan import SlurmSite, plan_slurm
from orchestrator.targets.slurm.resolve import Inputs
from orchestrator.targets.slurm.settings import SlurmSettings


def plan(request: TrainRequest) -> Plan:
    """Read the files, decide. Asks Slurm nothing, and writes nothing."""
    inputs = read(request)
    site = new_site(inputs.recipe.name, Path(request.runs_dir).absolute(), inputs.slurm)
    return plan_or_resume(request, lambda resume: plan_slurm(request, inputs, site, resume))


def read(request: TrainRequest) -> Inputs:
    own = request.own(SlurmOptions)
    slurm = slurm_settings(own.slurm_file, own.slurm)
    check_login(slurm)
    recipe = load.recipe(request.recipe, tuple(map(Path, request.recipe_path)))
    python = interpreter(slurm, request.stack)
    return Inputs(
        recipe=recipe,
        stack=load.stack(request.stack),
        slurm=slurm,
        facts=local_facts(python),
        python=python,
        settings=load.settings(list(request.settings), recipe),
        plugins=load.plugins(),
    )


def check_login(slurm: SlurmSettings) -> None:
    """Raises PlanError."""
    if slurm.login:
        raise PlanError(
            f"--slurm login={slurm.login}: orch hands jobs in where it runs.",
            hint=f"`ssh {slurm.login}`, and run orch there: a run belongs to whoever sees its "
            "folder.",
        )


def interpreter(slurm: SlurmSettings, stack: str) -> str:
    """Raises RequestError for one that is not here: all nodes see what this host sees."""
    if slurm.python is None and slurm.root is None:
        return sys.executable
    python = slurm.python or f"{slurm.root}/stacks/{stack}/bin/python"
    if not Path(python).exists():
        raise RequestError(
            f"{python} is not there.",
            hint="--slurm root=FOLDER is one that `orch provision` has filled, or --slurm "
            "python=INTERPRETER one with the stack's packages, on a shared file system.",
        )
    return python


def new_site(recipe: str, base: Path, slurm: SlurmSettings) -> SlurmSite:
    new = new_identity()
    name = run_id(new, recipe)
    train = Path(slurm.root, "train") if slurm.root else TRAIN
    return SlurmSite(
        run_id=name,
        run_dir=str(base / name),
        train=str(train if train.exists() else TRAIN),
        train_here=str(TRAIN),
        started_by=new.started_by,
        created=new.created,
    )
