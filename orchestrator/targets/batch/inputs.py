"""Read what a request for a job names, the files and the shared stack, and plan the job."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.files import TRAIN, short_digest, source_files, state_home
from orchestrator.load.records import MEASURED, read_measurement
from orchestrator.model.process_group import uses_gpus
from orchestrator.planning import sweep
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, Site, TargetOptions, TrainRequest
from orchestrator.targets.batch.decisions import JobInputs, check_options, with_size
from orchestrator.targets.batch.load import COMMAND_LINE, batch_settings
from orchestrator.targets.batch.login import LoginHost, python_hint, query_default_ranks, query_host
from orchestrator.targets.batch.plan import PlannedRun, plan_array, plan_job, plan_run
from orchestrator.targets.batch.settings import BatchSettings
from orchestrator.targets.batch.system import NEW, ONE_RANK, BatchSystem
from orchestrator.targets.identity import site_of
from orchestrator.targets.interface import SharedFolder
from orchestrator.targets.interpreter import check_no_image, path_of, user_python

# The options that select the kind of nodes, and the cores of a rank.
HARDWARE_OPTIONS = ("clusters", "partition", "constraint", "nodelist", "cpus-per-task", "queue", "select")


def plan(system: BatchSystem, request: TrainRequest, resume: Resume | None = None) -> Plan:
    """Return the plan of a request.

    Nothing is written. A login node is queried for its stack, and the batch system for its nodes' sockets if the
    request leaves the number of ranks open.

    Raises:
        RequestError: if an option, a setting or a file is invalid.
        PlanError: if the request cannot run as it is.
        ExecuteError: if the login node does not respond as expected.
    """
    batch = settings_of(system, request)
    python = interpreter(batch, request.stack)
    host = query_host(system, batch.login or "", python, is_user_python=bool(batch.python))
    inputs = read(request, batch, python, host)
    runs = runs_folder(request, batch, host)
    train, store = train_folder(runs, batch), f"{runs}/.orch/store"
    site = site_of(resume, inputs.loaded.recipe.name, runs, train=train, store=store)
    if request.array:
        return plan_of_array(request, inputs, site)
    return plan_job(request, inputs, site)


def settings_of(system: BatchSystem, request: TrainRequest) -> BatchSettings:
    """Return the settings of a request, with the allocation in which orch runs; the errors are those of plan()."""
    options = request.options_of(system.options)
    batch = batch_settings(
        system,
        system.file_in(options),
        system.assignments_in(options),
        image=request.image,
        image_options=request.image_options,
    )
    check_no_image(request)
    if request.python:
        batch = replace(batch, python=path_of(request.python, this_machine=not batch.login))
    batch.check()
    check_image_exists(batch)
    return with_allocation(batch, os.environ, array=bool(request.array))


def measurement_file(batch: BatchSettings) -> Path:
    """Return the file of what `orch bench` measures on nodes that these settings select."""
    hardware = [f"{name}={batch.options[name]}" for name in HARDWARE_OPTIONS if name in batch.options]
    selection = json.dumps([batch.login, batch.held.job if batch.held else "", hardware])
    digest = hashlib.sha256(selection.encode()).hexdigest()[:10]
    return state_home() / "clusters" / f"{batch.system.name}-{digest}" / MEASURED


def with_allocation(batch: BatchSettings, environ: Mapping[str, str], *, array: bool = False) -> BatchSettings:
    """Return the settings with the allocation in which orch runs, if it runs in one.

    Raises:
        PlanError: if the command line has options that only a new job can have.
    """
    system, needs_new_job = batch.system, batch.allocation == NEW or batch.login
    held = None if needs_new_job or system.held is None else system.held.find(environ)
    if held is not None:
        options = [f"{system.flag} {name}" for name, reason in batch.sources.items() if reason == COMMAND_LINE]
        check_options(system, held, [*options, *(["--array"] if array else [])])
    return replace(batch, held=held)


def shared_folder(system: BatchSystem, options: tuple[TargetOptions, ...]) -> SharedFolder:
    """Return the folder that all nodes see, for `orch provision`.

    Raises:
        RequestError: if no shared folder is configured, or the settings cannot be read.
        PlanError: if a setting is invalid.
    """
    system_options = next((value for value in options if isinstance(value, system.options)), system.options())
    batch = batch_settings(system, system.file_in(system_options), system.assignments_in(system_options))
    batch.check()
    if batch.root is None:
        raise RequestError(
            "The folder that all nodes share is unknown.",
            hint=f"Use {system.flag} root=/shared/orch, or set root in {system.settings_file}.",
        )
    return SharedFolder(host=batch.login or "", root=batch.root)


def check_image_exists(batch: BatchSettings) -> None:
    """Check that the image exists, if this machine sees what the nodes see.

    Raises:
        RequestError: if it does not exist.
        PlanError: if its path cannot be used on the nodes.
    """
    if batch.image and not batch.login and not Path(batch.image.path).exists():
        batch.image.check()
        raise RequestError(
            f"--image {batch.image.path}: no such image.",
            hint="All nodes must see it: a .sif file or a folder of Apptainer.",
        )


def plan_of_array(request: TrainRequest, inputs: JobInputs, site: Site) -> Plan:
    """Return the plan of an array."""
    members = load.array_members(request.array, request.array_sample)
    runs = [
        (member, plan_member(request, inputs, sweep.site_of(site, number), member))
        for number, member in enumerate(members)
    ]
    return plan_array(site, runs, sweep.max_active_runs(request.array))


def plan_member(request: TrainRequest, inputs: JobInputs, site: Site, member: sweep.Member) -> PlannedRun:
    """Return one run of an array."""
    recipe = inputs.loaded.recipe
    request = sweep.request_of(request, member, own_script=recipe.own_script)
    values = load.settings(list(request.settings), recipe)
    return plan_run(request, replace(inputs, loaded=replace(inputs.loaded, settings=values)), site)


def read(request: TrainRequest, batch: BatchSettings, python: str, host: LoginHost) -> JobInputs:
    """Return the inputs that a request names, after reading its files."""
    path = None if batch.image else batch.python
    software = load.RankSoftware(
        image=batch.image.path if batch.image else "",
        nodes=(host.facts,),
        user_python=path or "",
        local_python="" if batch.login or batch.setup else python,  # the commands of setup may set PYTHONPATH
        shares_files=not batch.login,
    )
    batch = with_size(batch)
    loaded = load.inputs(request, software, left_out=[Path(batch.root)] if batch.root else [])
    for_gpus = uses_gpus(request.backend, loaded.plugins)
    return JobInputs(
        loaded=loaded,
        batch=batch,
        facts=host.facts,
        python=python,
        user_python=user_python(path, host.facts, for_gpus=for_gpus) if path else None,
        default_ranks=query_default_ranks(batch) if request.ppn is None else ONE_RANK,
        measurement=read_measurement(measurement_file(batch)),
    )


def interpreter(batch: BatchSettings, stack: str) -> str:
    """Return the interpreter on the nodes, which see the folders of the host with the system's programs.

    Raises:
        PlanError: if there is a login node and no interpreter is configured.
    """
    if batch.python or batch.root:
        return batch.python or f"{batch.root}/stacks/{stack}/bin/python"
    if batch.login and batch.image:
        return "/usr/bin/python3"  # It starts the job only; ranks use the interpreter of the image.
    if batch.login:
        raise PlanError(
            f"{batch.system.flag} login={batch.login}: the Python of its nodes is unknown.",
            hint=python_hint(batch.system),
        )
    return sys.executable


def runs_folder(request: TrainRequest, batch: BatchSettings, host: LoginHost) -> str:
    """Return the folder of runs as the nodes see it."""
    if batch.login:
        return batch.runs or f"{host.home}/runs"
    return str(Path(request.runs_dir).absolute())


def train_folder(runs: str, batch: BatchSettings) -> str:
    """Return the folder in which the nodes find the programs of this version of orch."""
    if batch.login:
        return f"{runs}/.orch/train-{short_digest(source_files(TRAIN), TRAIN)}"
    train = Path(batch.root, "train") if batch.root else TRAIN
    return str(train if train.exists() else TRAIN)
