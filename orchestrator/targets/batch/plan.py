"""Plan a request as a job: decide how it runs, and write the job's script. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from orch_node.protocol import files as run_files
from orch_node.protocol.batch import NODE0, JobConfig
from orch_node.protocol.container import PYXIS
from orch_node.protocol.environment import ALWAYS, defaults
from orch_node.protocol.record import RunNode

from orchestrator.launchers import LAUNCHERS, Job, Launch
from orchestrator.model.command import Command
from orchestrator.model.decision import Decision, all_decisions
from orchestrator.model.links import Link
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning.containers import shared_folders
from orchestrator.planning.plan import CopyFiles, Plan, SendFolder, Step, SubmitScript
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.resolve import Resolved
from orchestrator.planning.run_files import TIMEOUT_SECONDS, master_port
from orchestrator.planning.sent_files import (
    Files,
    in_train,
    module_folders,
    named_files,
    project_copy,
    sent_files,
    sent_packages,
    stored_packages,
)
from orchestrator.planning.supervision import launcher_restarts, supervisor_options
from orchestrator.planning.training import (
    Home,
    choose_output,
    explain_environment,
    explain_packages,
    explain_restarts,
    origin_of,
    request_key,
    run_precision,
    run_record,
    script_command,
    user_variables,
)
from orchestrator.targets.batch import location as locations
from orchestrator.targets.batch.decisions import NODE_PREFIX, JobInputs, resolve_job
from orchestrator.targets.batch.image import Image, choose_image
from orchestrator.targets.batch.location import JOB_NAME_PREFIX, JobLocation, store_of
from orchestrator.targets.batch.script import job_options, render
from orchestrator.targets.batch.settings import BatchSettings
from orchestrator.targets.batch.system import BatchSystem

LOGIN = RunNode(node="login")


LOGIN_PYTHON = "python3"  # on the host with the system's programs, which may lack the stack


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSite:
    """The identity and the folders of a new run.

    Attributes:
        run_id: the id of the run.
        run_dir: the folder of the run, which all nodes see.
        train: the folder with orch's programs, which all nodes see.
        train_here: the folder with orch's programs on this machine.
        started_by: the user as user@host.
        created: the time of creation, in seconds since the epoch.
    """

    run_id: str
    run_dir: str
    train: str
    train_here: str
    started_by: str
    created: float

    @property
    def store(self) -> str:
        """Return the folder of what controllers have sent, by the hash of the content."""
        return store_of(self.run_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run with all decisions made; only its script is still to be written.

    Attributes:
        plan: the plan of the run, without steps.
        config: the settings for orch's program in the job.
        files: the files that the run needs, and how they get to the cluster.
        batch: the settings for the batch system.
    """

    plan: Plan
    config: JobConfig
    files: Files
    batch: BatchSettings


def plan_job(request: TrainRequest, inputs: JobInputs, site: BatchSite, resume: Resume | None = None) -> Plan:
    """Return the plan of a request as one job.

    Raises:
        PlanError: if the request cannot run as it is.
        RequestError: if an option or a setting is invalid.
    """
    planned = plan_run(request, inputs, site, resume)
    name = f"{JOB_NAME_PREFIX}{site.run_id}"
    options = job_options(name, planned.config, planned.batch)
    system, held = planned.batch.system, planned.batch.held
    step = SubmitScript(
        node=login_of(planned.batch),
        run_dir=site.run_dir,
        script=render(planned.plan, planned.config, planned.batch, options),
        name=name,
        options=options,
        program=system.held.program if held and system.held else system.submitter,
        allocation=held.job if held else "",
    )
    return replace(planned.plan, steps=(*send_steps(planned, site), step))


def plan_run(request: TrainRequest, inputs: JobInputs, site: BatchSite, resume: Resume | None = None) -> PlannedRun:
    """Return a run with all decisions made.

    Raises:
        PlanError: if the request cannot run as it is.
        RequestError: if an option or a setting is invalid.
    """
    resolved = resolve_job(request, inputs, resume)
    output = choose_output(resolved.training.recipe, site.run_dir, resume)
    files = files_of(resolved, inputs.batch, site)
    script = script_command(request, resolved.training, files.paths, output.value)
    launch = launch_of(request, inputs, resolved, site, script)
    decisions = (
        Decision(topic="run", value=site.run_id),
        *all_decisions(resolved.stack),
        *explain_job(request, resolved, inputs.batch),
        *explain_allocation(inputs.batch),
        *explain_local_stack(inputs),
        *all_decisions(resolved.layout),
        Decision(topic="launcher", value=resolved.launcher, reason=launch.summary),
        *choose_image(inputs.batch.image, resolved.launcher).decisions,
        *all_decisions(resolved.backend, resolved.precision, resolved.preload, output),
        *explain_restarts(request.max_restarts, resolved.training.recipe, request.min_nodes),
        *explain_environment(request),
        *([resolved.training.recipe.project.explain()] if resolved.training.recipe.project else []),
        *explain_packages(resolved.training.recipe),
    )
    plan = Plan(
        run=run_record(
            resolved.training,
            site,
            home_of(resolved, inputs, site, output.value),
            key=key_of(request, resolved, inputs.batch),
            decisions=decisions,
        ),
        origin=origin_of(request, resolved.training, {inputs.facts.fingerprint: "all nodes"}),
        steps=(),
    )
    config = config_of(request, resolved, inputs, site, launch)
    config = replace(config, precision=run_precision(resolved.training, output.value))
    if inputs.batch.image:
        config = with_container(config, inputs.batch.image, files, site, resolved.training.recipe.script)
    return PlannedRun(plan=plan, config=config, files=files, batch=inputs.batch)


def with_container(config: JobConfig, image: Image, files: Files, site: BatchSite, script: str) -> JobConfig:
    """Return the job's settings with the ranks in an image.

    The settings that depend on libraries of the nodes are left out, because the image has its own.

    Raises:
        PlanError: if the image's engine cannot mount one of the folders.
    """
    base = str(PurePosixPath(site.run_dir).parent)
    folders = shared_folders(base, site.train, files.paths.get(script, ""), files.paths.values())
    text = image.file(folders, site.run_dir, preload=config.preload)
    return replace(config, torch=None, preload=(), files={**config.files, run_files.CONTAINER: text})


def send_steps(planned: PlannedRun, site: BatchSite) -> tuple[Step, ...]:
    """Return the steps that copy files before the script: to the login node, or into the shared folder of runs."""
    if not planned.batch.login:
        return planned.files.sent
    login = login_of(planned.batch)
    return (SendFolder(node=login, source=site.train_here, path=site.train), *planned.files.sent)


def files_of(resolved: Resolved, batch: BatchSettings, site: BatchSite) -> Files:
    """Return the paths of the run's files as the ranks find them.

    Shared folders have the same path everywhere, and files of train/ are in the nodes' copy of it. Other
    files are sent if the run is started over a login node. A project is copied in any case.
    """
    recipe, settings = resolved.training.recipe, resolved.training.settings
    if batch.login:
        files = sent_files(recipe, settings, (login_of(batch),), site, python=LOGIN_PYTHON)
    else:
        files = shared_files(recipe, settings, site)
    packages = sent_packages(recipe, (login_of(batch),), site, python=LOGIN_PYTHON)
    return replace(files, sent=(*files.sent, *packages))


def shared_files(recipe: Recipe, settings: Mapping[str, Value], site: BatchSite) -> Files:
    """Return the paths of the files that nodes see where they are, and the step that copies the project."""
    paths = {path: in_train(path, site) or path for path in named_files(recipe, settings)}
    project, copy = recipe.project, project_copy(site.run_dir)
    if project is None:
        return Files(paths=paths, sent=())
    if recipe.script_file:
        paths[recipe.script_file] = project.path_in(copy, recipe.script_file)
    step = CopyFiles(source=project.folder, files=tuple(project.files), path=copy, digest=project.digest)
    return Files(paths=paths, sent=(step,))


def login_of(batch: BatchSettings) -> RunNode:
    """Return the host with the system's programs."""
    if not batch.login:
        return LOGIN
    return RunNode(node=batch.login, via=("ssh", "--", batch.login))


def launch_of(
    request: TrainRequest, inputs: JobInputs, resolved: Resolved, site: BatchSite, script: tuple[str, ...]
) -> Launch:
    """Return the command that starts the ranks; the job fills in the address of node0."""
    image = inputs.batch.image
    python = image.python if image and image.engine == PYXIS else inputs.ranks_python
    ranks = (python, f"{site.train}/node.py", "rank", "--run", site.run_dir, "--", *script)
    system = inputs.batch.system
    if resolved.launcher == system.launcher:
        head = (inputs.python, f"{site.train}/node.py", f"{system.name}-ranks", site.run_dir)
        options = (f"--{name}={value}" for name, value in inputs.batch.launcher.items())
        return Launch(command=Command(argv=(*head, *options, "--", *ranks)), summary=system.launcher_summary)
    return LAUNCHERS[resolved.launcher](
        Job(
            nodes=resolved.nodes.value,
            layout=resolved.layout.value,
            links=tuple(
                Link(node=node.name, interface=NODE_PREFIX, address=NODE0, reason="") for node in resolved.nodes.value
            ),
            run_dir=site.run_dir,
            train=site.train,
            ranks=ranks,
            address=NODE0,
            port=master_port(site.run_id),
            mpi=resolved.mpi.value or "intel",
            precision=resolved.precision.value,
            ipex=request.ipex,
            restarts=launcher_restarts(request, resolved.launcher),
            min_nodes=request.min_nodes,
        )
    )


def explain_job(request: TrainRequest, resolved: Resolved, batch: BatchSettings) -> tuple[Decision, ...]:
    """Return the decisions about the job: its login node, nodes, options and setup commands."""
    nodes = str(len(resolved.nodes.value))
    spare = f" and {request.spare_nodes} spare" if request.spare_nodes else ""
    system = batch.system
    options = (
        Decision(topic=f"{system.name} {name}", value=value or "yes", reason=reason_of(batch, name))
        for name, value in batch.options.items()
        if not batch.held
    )
    setup = (Decision(topic="setup", value=command, reason="requested") for command in batch.setup)
    login = batch.login
    return (
        *((Decision(topic="login", value=login, reason="by SSH"),) if login else ()),
        Decision(topic="nodes", value=nodes + spare, reason=f"chosen by {system.title}"),
        *options,
        *setup,
    )


def explain_allocation(batch: BatchSettings) -> tuple[Decision, ...]:
    """Return the allocation that the run is a step of, and the options without effect in it."""
    if batch.held is None:
        return ()
    reason = f"already held; {batch.system.new_job_hint[:-1]}"
    held = Decision(topic="allocation", value=batch.held.job, reason=reason)
    unused = ", ".join(f"{name} ({batch.sources[name]})" for name in batch.options)
    reason = f"options of {batch.system.submitter} do not change an allocation"
    return (held, *([Decision(topic="without", value=unused, reason=reason)] if unused else []))


def reason_of(batch: BatchSettings, option: str) -> str:
    """Return where an option of the job comes from, and what it means if that is not obvious."""
    reason = batch.sources.get(option, "")
    explanation = batch.system.explain_option(option, batch.options)
    return f"{reason}; {explanation}" if explanation else reason


def explain_local_stack(inputs: JobInputs) -> tuple[Decision, ...]:
    """Return the decision about the nodes' local copy of the stack, if there is one."""
    if inputs.local is None:
        return ()
    reason = f"on each node's disk, unpacked once from {inputs.local.archive}"
    return (Decision(topic="local stack", value=inputs.local.folder, reason=reason),)


def home_of(resolved: Resolved, inputs: JobInputs, site: BatchSite, output_dir: str | None) -> Home:
    """Return where the run is: its nodes, its folders and its location in the batch system."""
    location = JobLocation(name=f"{JOB_NAME_PREFIX}{site.run_id}", login=inputs.batch.login or "")
    return Home(
        nodes=tuple(RunNode(node=node.name) for node in resolved.nodes.value),
        run_dir=site.run_dir,
        train=site.train,
        python=inputs.python,
        output_dir=output_dir,
        target=inputs.batch.system.name,
        location=locations.render(location),
    )


def key_of(request: TrainRequest, resolved: Resolved, batch: BatchSettings) -> str:
    """Return the key that is equal for repetitions of the same request."""
    image = batch.image.path if batch.image else ""
    hosts = (batch.system.name, batch.login or "", batch.root or "", *([image] if image else ()))
    names = (resolved.launcher, str(request.nodes or ""))
    return request_key(request, resolved.training, hosts=hosts, names=names)


def config_of(
    request: TrainRequest, resolved: Resolved, inputs: JobInputs, site: BatchSite, launch: Launch
) -> JobConfig:
    """Return the settings for orch's program in the job."""
    backend, recipe = resolved.backend.value, resolved.training.recipe
    project = recipe.project
    system = inputs.batch.system
    return JobConfig(
        system=system.name,
        run_id=site.run_id,
        nodes=len(resolved.nodes.value),
        spare_nodes=request.spare_nodes,
        ppn=resolved.layout.value.rank_places[0].local_world_size,
        port=master_port(site.run_id),
        backend=backend.name,
        backend_module=backend.module,
        setvars=backend.setvars,
        timeout_seconds=TIMEOUT_SECONDS,
        env={
            **ALWAYS,
            **dict(backend.env),
            **launch.environment,
            **defaults(recipe.environment),
            **user_variables(request, module_folders(recipe, site.run_dir, stored_packages(recipe, site))),
        },
        preload=tuple(resolved.stack.value.preload),
        torch=inputs.facts.packages.get("torch"),
        needs_bf16=resolved.precision.value == "bf16" and not request.allow_slow_bf16,
        launch=resolved.launcher,
        mpi=resolved.mpi.value,
        launcher=launch.command.argv,
        launcher_env=with_bootstrap(dict(launch.command.env), system),
        files={**launch.files, **launch.shared},
        options=supervisor_options(request, resolved.training.recipe, resolved.launcher, launch),
        requeue=system.can_resume(inputs.batch.options) and inputs.batch.held is None,
        max_requeues=inputs.batch.max_requeues,
        local=inputs.local,
        working_directory=project.working_directory(project_copy(site.run_dir)) if project else "",
    )


def with_bootstrap(env: dict[str, str], system: BatchSystem) -> dict[str, str]:
    """Return the environment with the batch system as the launcher of hydra, in place of ssh.

    Many sites forbid ssh between their nodes.
    """
    other_variables = {name: value for name, value in env.items() if not name.startswith(("I_MPI_HYDRA", "HYDRA"))}
    return {**other_variables, **system.launcher_env}
