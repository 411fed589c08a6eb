"""Read what a request for a job names: the settings, the files and the shared stack; then plan the job.

Settings are read from the environment, a file such as orch-slurm.toml, and options such as --slurm KEY=VALUE. Each of
these sources takes precedence over those named before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, create_model

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.files import TRAIN, short_digest, source_files, state_home
from orchestrator.load.docker import check_no_image_options, parse_image_option
from orchestrator.load.files import StrictModel, read_current_folder_toml, read_toml
from orchestrator.load.inputs import run_paths_of
from orchestrator.load.records import MEASURED, read_measurement
from orchestrator.model.process_group import uses_gpus
from orchestrator.planning import sweep
from orchestrator.planning.measured import valid_for
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, RunPaths, TrainRequest
from orchestrator.planning.resolve import Inputs, RunNodes
from orchestrator.targets.batch.plan import job_nodes, plan_job, plan_run, submit_step, with_size
from orchestrator.targets.batch.scheduler import python_hint, query_default_ranks, query_host
from orchestrator.targets.batch.settings import BatchSettings, Image
from orchestrator.targets.batch.system import FLAG_VALUES, NEW, ONE_RANK, BatchSystem
from orchestrator.targets.interpreter import path_of, user_python

IMAGE_KEYS = ("python", "mounts", "env_file", "arguments")
TEXT_SETTINGS = ("root", "login", "runs", "allocation")
COMMAND_LINE = "requested"  # The reason shown for options of the command line.
SETUP, MAX_REQUEUES = "setup", "max-requeues"


def check_option(value: Any) -> Any:
    """Check that an option of a job has a value of one line, which times without quotes are not."""
    if not isinstance(value, str | int):
        raise ValueError('expected a string; write it in quotes: KEY = "..."')
    return value


OptionValue = Annotated[str | int | bool, BeforeValidator(check_option)]


class SettingsFile(StrictModel):
    """The contents of a settings file; BatchSettings describes the fields."""

    python: str | None = None
    setup: list[str] = Field(default_factory=list)
    max_requeues: int | None = Field(None, alias="max-requeues", ge=0)
    container: Image = Image()
    submitter: ClassVar[str]

    @classmethod
    def hint_about_unknown_key(cls, keys: list[str]) -> str:
        """Return the keys of a table, or in which table a key belongs."""
        if len(keys) > 1:
            return f"The keys of [container] are {', '.join(Image.model_fields)}."
        names = [field.alias or name for name, field in cls.model_fields.items()]
        return (
            f"Options of {cls.submitter} belong below a line [{cls.submitter}], those of an image below [container]. "
            f"The other keys are {', '.join(name for name in names if name not in ('container', cls.submitter))}."
        )


def file_model(system: BatchSystem) -> type[SettingsFile]:
    """Return the contents of the settings file of a batch system, which adds its options and launcher settings."""
    fields: dict[str, Any] = {system.submitter: (dict[str, OptionValue], Field(default_factory=dict))}
    fields |= {name: (str | None, None) for name in (*TEXT_SETTINGS, *system.launcher_settings)}
    model = create_model(f"{system.title}File", __base__=SettingsFile, **fields)
    model.submitter = system.submitter
    return model


def batch_settings(
    system: BatchSystem,
    path: Path | None,
    assignments: Iterable[str],
    environ: Mapping[str, str] = os.environ,
    *,
    image: str | None = None,
    image_options: Iterable[str] = (),
) -> BatchSettings:
    """Return the settings for a batch system from the environment, a file and the command line.

    Args:
        system: the batch system.
        path: a settings file; None for that in the current folder, if there is one.
        assignments: the values of the system's option, such as --slurm, as KEY=VALUE or the name of a flag.
        environ: the environment, which may have options of the system.
        image: the value of --image; None if the option is not used.
        image_options: the values of --image-option.

    Raises:
        RequestError: if the file or one of the assignments is malformed.
    """
    flag, model = system.flag, file_model(system)
    values = read_toml(path, model) if path else read_current_folder_toml(system.settings_file, model, f"{flag}-file")
    values, source = values or model.model_validate({}), path or system.settings_file
    texts = {name: getattr(values, name) for name in (*TEXT_SETTINGS, *system.launcher_settings)}
    setup, options = [(SETUP, command) for command in values.setup], getattr(values, system.submitter)
    entries = [*system.options_in(environ)]
    for name, value in (*texts.items(), *setup, *options.items()):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if value is not None and (value is not False or system.is_flag(name)):
            entries.append((name, text, str(source)))
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (equals or system.is_flag(name)):
            raise RequestError.about("batch-option", flag=flag, assignment=assignment, system=system)
        entries.append((name, text, COMMAND_LINE))
    launcher = {name: choices[0] for name, choices in system.launcher_settings.items()}
    settings = BatchSettings(system=system, python=values.python, max_requeues=values.max_requeues, launcher=launcher)
    for name, text, origin in entries:
        settings = with_setting(settings, name, text, origin)
    used_image = values.container
    for option in image_options:
        changed = parse_image_option(used_image, option, IMAGE_KEYS, "mounts=/data:/data")
        used_image = used_image.model_copy(update=changed)
    image_path = used_image.image if image is None else image
    if not image_path:
        check_no_image_options(tuple(image_options))
        return settings
    if not settings.login and "://" not in image_path:  # with a login node, the path is one there
        image_path = os.path.abspath(os.path.join(source.parent if image is None else "", image_path))
    return replace(settings, image=used_image.model_copy(update={"image": image_path}))


def with_setting(settings: BatchSettings, name: str, text: str, source: str) -> BatchSettings:
    """Return the settings with one of them changed; an empty text resets it, unless it is a flag.

    Options of the job may have short names, and flags values: `hold=yes` is the same as `hold`, `p` as partition.

    Raises:
        RequestError: if it cannot be used.
    """
    flag = settings.system.flag
    if name in TEXT_SETTINGS:
        changes: dict[str, Any] = {name: text or None}
        if name == "root" and text and source == COMMAND_LINE:
            changes["python"] = None  # that of a settings file
        return replace(settings, **changes)
    if name in settings.launcher:
        return replace(settings, launcher={**settings.launcher, name: text})
    if name == SETUP:
        return replace(settings, setup=(*settings.setup, text))
    if name == MAX_REQUEUES:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise RequestError(f"{flag} {name}={text}: expected a number.", hint=f"Example: {flag} {name}=10")
        return replace(settings, max_requeues=int(text))
    for long_name, value in settings.system.long_options(name, text):
        key = long_name.replace("_", "-")
        is_flag = key in settings.system.flags
        value = FLAG_VALUES.get(value.lower(), value) if is_flag else value
        options, sources = {**settings.options, key: value}, {**settings.sources, key: source}
        if not (value or is_flag):
            del options[key], sources[key]
        settings = replace(settings, options=options, sources=sources)
    return settings


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
    facts, home = query_host(system, batch.login or "", python, is_user_python=bool(batch.python))
    path = None if batch.image else batch.python
    loaded = load.inputs(
        request,
        image=batch.image.image if batch.image else "",
        nodes=(facts,),
        user_python=path or "",
        local_python="" if batch.login or batch.setup else python,  # the commands of setup may set PYTHONPATH
        shares_files=not batch.login,
        left_out=[Path(batch.root)] if batch.root else [],
    )
    users = user_python(path, facts, for_gpus=uses_gpus(request.backend, loaded.plugins)) if path else None
    ranks = query_default_ranks(batch) if request.ppn is None else ONE_RANK
    nodes = job_nodes(request, loaded, batch, facts, python, users, default_ranks=ranks)
    measured = read_measurement(measurement_file(batch))
    nodes = replace(nodes, measurement=measured and valid_for(measured, nodes.nodes.value, by_name=False))
    runs = (batch.runs or f"{home}/runs") if batch.login else str(Path(request.runs_dir).absolute())
    train, store = train_folder(runs, batch), f"{runs}/.orch/store"
    store_here = str(state_home() / "store")
    run_paths = run_paths_of(resume, loaded.recipe.name, runs, train=train, store=store, store_here=store_here)
    return (plan_of_array if request.array else plan_job)(request, loaded, batch, nodes, run_paths)


def settings_of(system: BatchSystem, request: TrainRequest) -> BatchSettings:
    """Return the settings of a request, with the allocation in which orch runs; the errors are those of plan()."""
    options = request.options_of(system.options)
    batch = batch_settings(system, *system.values_in(options), image=request.image, image_options=request.image_options)
    if request.python:
        batch = replace(batch, python=path_of(request, this_machine=not batch.login))
    batch.check()
    check_image_exists(batch)
    return with_size(with_allocation(batch, is_array=bool(request.array)))


def measurement_file(batch: BatchSettings) -> Path:
    """Return the file of what `orch bench` measures on nodes that these settings select."""
    hardware = [f"{name}={batch.options[name]}" for name in batch.system.hardware_options if name in batch.options]
    selection = json.dumps([batch.login, batch.held.job if batch.held else "", hardware])
    digest = hashlib.sha256(selection.encode()).hexdigest()[:10]
    return state_home() / "clusters" / f"{batch.system.name}-{digest}" / MEASURED


def with_allocation(batch: BatchSettings, *, is_array: bool) -> BatchSettings:
    """Return the settings with the allocation in which orch runs, if it runs in one.

    Raises:
        PlanError: if the command line has options that only a new job can have.
    """
    system, needs_new_job = batch.system, batch.allocation == NEW or batch.login
    held = None if needs_new_job else system.held_allocation(os.environ)
    if held is not None:
        options = [f"{system.flag} {name}" for name, reason in batch.sources.items() if reason == COMMAND_LINE]
        if options := [*options, *["--array"] * is_array]:
            raise PlanError.about("held-allocation", options=", ".join(options), job=held.job, system=system)
    return replace(batch, held=held)


def check_image_exists(batch: BatchSettings) -> None:
    """Raise RequestError if the image does not exist although this machine sees what the nodes see."""
    if batch.image and not batch.login and not Path(batch.image.image).exists():
        raise RequestError.about("no-image", image=batch.image.image)


def plan_of_array(
    request: TrainRequest, loaded: Inputs, batch: BatchSettings, nodes: RunNodes, paths: RunPaths
) -> Plan:
    """Return the plan of an array: one script, each task of which is a run; they differ in their settings."""
    members, planned = load.array_members(request.array, request.array_sample), []
    for number, member in enumerate(members):
        member_request = sweep.request_of(request, member, own_script=loaded.recipe.own_script)
        member_inputs = replace(loaded, settings=load.settings(member_request.settings, loaded.recipe))
        planned.append(plan_run(member_request, member_inputs, batch, nodes, sweep.run_paths_of(paths, number)))
    plans = sweep.label_plans(list(zip(members, (plan for plan, _ in planned), strict=True)))
    runs = [(member.label, plan, config) for member, plan, (_, config) in zip(members, plans, planned, strict=True)]
    step = submit_step(runs, batch, paths, sweep.max_active_runs(request.array))
    sent = dict.fromkeys(step for plan in plans for step in plan.steps)
    return replace(plans[0], steps=(*sent, step), array=tuple(replace(plan, steps=()) for plan in plans))


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
        problem = f"{batch.system.flag} login={batch.login}: the Python of its nodes is unknown."
        raise PlanError(problem, hint=python_hint(batch.system))
    return sys.executable


def train_folder(runs: str, batch: BatchSettings) -> str:
    """Return the folder in which the nodes find the programs of this version of orch."""
    if batch.login:
        return f"{runs}/.orch/train-{short_digest(source_files(TRAIN), TRAIN)}"
    train = Path(batch.root, "train") if batch.root else TRAIN
    return str(train if train.exists() else TRAIN)
