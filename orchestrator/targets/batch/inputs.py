"""Read what a request for a job names, the files and the shared stack, and plan the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.files import short_digest, source_files
from orchestrator.paths import TRAIN
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import TargetOptions, TrainRequest
from orchestrator.runs.resume import done as finished
from orchestrator.runs.resume import plan_or_resume, resumed
from orchestrator.targets.batch import array
from orchestrator.targets.batch.allocation import NEW, held_allocation
from orchestrator.targets.batch.decisions import JobInputs, with_size
from orchestrator.targets.batch.load import COMMAND_LINE, slurm_settings
from orchestrator.targets.batch.login import PYTHON_HINT, LoginHost, local_stack, query_host
from orchestrator.targets.batch.options import SlurmOptions
from orchestrator.targets.batch.plan import PlannedRun, SlurmSite, plan_run, plan_slurm
from orchestrator.targets.batch.settings import SlurmSettings
from orchestrator.targets.identity import new_identity, run_id
from orchestrator.targets.interface import SharedFolder


def plan(request: TrainRequest) -> Plan:
    """Return the plan of a request.

    Slurm is not queried and nothing is written. A login node is queried for its stack.

    Raises:
        RequestError: if an option, a setting or a file is invalid.
        PlanError: if the request cannot run as it is.
        ExecuteError: if the login node does not respond as expected.
    """
    options = request.options_of(SlurmOptions)
    slurm = slurm_settings(options.slurm_file, options.slurm, image=request.image, image_options=request.image_options)
    slurm.check()
    check_image_exists(slurm)
    slurm = with_allocation(slurm, os.environ, array=bool(options.array))
    python = interpreter(slurm, request.stack)
    host = query_host(slurm.login or "", python)
    inputs = read(request, slurm, python, host)
    site = new_site(inputs.loaded.recipe.name, runs_folder(request, slurm, host), slurm)
    if options.array:
        return plan_of_array(request, inputs, site, options.array)
    return plan_or_resume(request, lambda resume: plan_slurm(request, inputs, site, resume))


def with_allocation(slurm: SlurmSettings, environ: Mapping[str, str], *, array: bool = False) -> SlurmSettings:
    """Return the settings with the allocation in which orch runs, if it runs in one.

    Raises:
        PlanError: if the command line has options that only a new job can have.
    """
    needs_new_job = slurm.allocation == NEW or slurm.login
    held = None if needs_new_job else held_allocation(environ)
    if held is not None:
        options = [f"--slurm {name}" for name, reason in slurm.sources.items() if reason == COMMAND_LINE]
        held.check_options([*options, *(["--array"] if array else [])])
    return replace(slurm, held=held)


def shared_folder(options: tuple[TargetOptions, ...]) -> SharedFolder:
    """Return the folder that all nodes see, for `orch provision`.

    Raises:
        RequestError: if no shared folder is configured, or the settings cannot be read.
        PlanError: if a setting is invalid.
    """
    slurm_options = next(
        (target_options for target_options in options if isinstance(target_options, SlurmOptions)), SlurmOptions()
    )
    slurm = slurm_settings(slurm_options.slurm_file, slurm_options.slurm)
    slurm.check()
    if slurm.root is None:
        raise RequestError(
            "The folder that all nodes share is unknown.",
            hint="Use --slurm root=/shared/orch, or set root in orch-slurm.toml.",
        )
    return SharedFolder(host=slurm.login or "", root=slurm.root, archive=bool(slurm.local))


def check_image_exists(slurm: SlurmSettings) -> None:
    """Check that the image exists, if this machine sees what the nodes see.

    Raises:
        RequestError: if it does not exist.
        PlanError: if its path cannot be used on the nodes.
    """
    if slurm.image and not slurm.login and not Path(slurm.image.path).exists():
        slurm.image.check()
        raise RequestError(
            f"--image {slurm.image.path}: no such image.",
            hint="Use a .sif file or a folder of Apptainer, or a .sqsh file of Pyxis, that all nodes see.",
        )


def plan_of_array(request: TrainRequest, inputs: JobInputs, site: SlurmSite, axes: tuple[str, ...]) -> Plan:
    """Return the plan of an array, without the runs that have already finished.

    Raises:
        RequestError: if all of them have.
    """
    all_runs = array.combinations(axes)
    runs: list[tuple[array.Assignments, PlannedRun]] = []
    done: dict[str, array.Assignments] = {}
    for settings in all_runs:
        planned = plan_member(request, inputs, array.site_of(site, len(runs)), settings)
        if isinstance(planned, str):
            done[planned] = settings
        else:
            runs.append((settings, planned))
    if not runs:
        raise RequestError(
            f"All runs of this array are done already ({len(all_runs)}).",
            hint=f"`orch report {' '.join(done)}` compares them; --fresh trains them again.",
        )
    return array.plan_array(site, runs, array.max_active_runs(axes), done)


def plan_member(
    request: TrainRequest, inputs: JobInputs, site: SlurmSite, settings: array.Assignments
) -> PlannedRun | str:
    """Return one run of an array, resumed if it is unfinished, or the id of a run that has finished."""
    recipe = inputs.loaded.recipe
    request = array.request_of(request, settings, own_script=recipe.own_script)
    values = load.settings(list(request.settings), recipe)
    inputs = replace(inputs, loaded=replace(inputs.loaded, settings=values))
    first = plan_run(request, inputs, site)
    if run_id := finished(request, first.plan.run.key):
        return run_id
    resume = resumed(request, first.plan.run.key)
    return plan_run(request, inputs, site, resume) if resume else first


def read(request: TrainRequest, slurm: SlurmSettings, python: str, host: LoginHost) -> JobInputs:
    """Return the inputs that a request names, after reading its files."""
    software = load.RankSoftware(
        image=slurm.image.path if slurm.image else "",
        nodes=(host.facts,),
        local_python="" if slurm.login or slurm.setup else python,  # the commands of setup may set PYTHONPATH
        shares_files=not slurm.login,
    )
    return JobInputs(
        # A module that is not in the current folder is one of the stack or of the image.
        loaded=load.inputs(
            request,
            software,
            has_project=not request.module or load.is_local_module(request.recipe),
            left_out=[Path(slurm.root)] if slurm.root else [],
        ),
        slurm=with_size(slurm),
        facts=host.facts,
        python=python,
        local=local_stack(slurm, request.stack),
    )


def interpreter(slurm: SlurmSettings, stack: str) -> str:
    """Return the interpreter on the nodes, which see the folders of the host with Slurm's programs.

    Raises:
        PlanError: if there is a login node and no interpreter is configured.
    """
    if slurm.python or slurm.root:
        return slurm.python or f"{slurm.root}/stacks/{stack}/bin/python"
    if slurm.login and slurm.image:
        return "/usr/bin/python3"  # It starts the job only; ranks use the interpreter of the image.
    if slurm.login:
        raise PlanError(f"--slurm login={slurm.login}: the Python of its nodes is unknown.", hint=PYTHON_HINT)
    return sys.executable


def runs_folder(request: TrainRequest, slurm: SlurmSettings, host: LoginHost) -> str:
    """Return the folder of runs as the nodes see it."""
    if slurm.login:
        return slurm.runs or f"{host.home}/runs"
    return str(Path(request.runs_dir).absolute())


def new_site(recipe: str, runs: str, slurm: SlurmSettings) -> SlurmSite:
    """Return the identity and the folders of a new run."""
    identity = new_identity()
    name = run_id(identity, recipe)
    return SlurmSite(
        run_id=name,
        run_dir=f"{runs}/{name}",
        train=train_folder(runs, slurm),
        train_here=str(TRAIN),
        started_by=identity.started_by,
        created=identity.created,
    )


def train_folder(runs: str, slurm: SlurmSettings) -> str:
    """Return the folder in which the nodes find the programs of this version of orch."""
    if slurm.login:
        return f"{runs}/.orch/train-{short_digest(source_files(TRAIN), TRAIN)}"
    train = Path(slurm.root, "train") if slurm.root else TRAIN
    return str(train if train.exists() else TRAIN)
