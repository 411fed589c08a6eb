"""Plan a request as a job: decide everything that its script depends on, and render the script. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orch_node.protocol import files as protocol_files
from orch_node.protocol import values
from orch_node.protocol.batch import CONFIG, NODE0, JobConfig, job_file
from orch_node.protocol.environment import ALWAYS
from orch_node.protocol.record import RunNode

from orchestrator.errors import PlanError
from orchestrator.files import render_template
from orchestrator.model.cluster import Link, Node, UserPython
from orchestrator.model.decision import Choice, Decision, all_decisions
from orchestrator.model.facts import Facts, Gpu
from orchestrator.model.printable import Command, counted, one_line
from orchestrator.model.process_group import uses_gpus
from orchestrator.planning import launchers, resolve, run_files, training
from orchestrator.planning.containers import shared_folders
from orchestrator.planning.plan import Plan, RunProgram, SendFolder, SubmitScript
from orchestrator.planning.request import RunPaths, TrainRequest
from orchestrator.planning.resolve import Inputs, Resolved, RunNodes
from orchestrator.targets.batch.settings import JOB_NAME_PREFIX, BatchSettings, JobLocation
from orchestrator.targets.batch.system import ONE_RANK, TEMPLATE, Allocation, BatchSystem, JobRequest
from orchestrator.targets.interpreter import REPAIR

MPI = ("intel", "mpich")  # Their hydra can start processes with batch systems; the wheel of Open MPI supports only ssh.
MAX_NODES = 10_000
NODE_PREFIX = "node"  # The prefix of placeholders for nodes that the batch system has not chosen yet.


def job_nodes(
    request: TrainRequest,
    loaded: Inputs,
    batch: BatchSettings,
    facts: Facts,
    python: str,
    user_python: UserPython | None = None,
    *,
    default_ranks: tuple[int, str] = ONE_RANK,
) -> RunNodes:
    """Return placeholders for the nodes that the batch system will choose.

    Args:
        request: the request.
        loaded: the files that it names.
        batch: the settings for the batch system, with the size of the job.
        facts: the facts of the host with the system's programs, whose stack all nodes see.
        python: the interpreter that starts the run.
        user_python: the ranks' interpreter, if the user has named one.
        default_ranks: the ranks on each node for --ppn auto, with the reason.

    Raises:
        PlanError: if the request does not fit the nodes.
    """
    system, held = batch.system, batch.held
    default = max(1, len(held.node_cpus) - request.spare_nodes) if held else 1  # all of a held allocation
    hint = f"Example: --nodes 4. {system.node_hints['nodes']}"
    count = resolve.count_nodes(request, default, limit=MAX_NODES, hint=hint)
    gpus = held.gpus if held else system.requested_gpus(batch.options, count + request.spare_nodes)
    on_gpus = uses_gpus(request.backend, loaded.plugins)
    if on_gpus and not gpus:
        raise PlanError(f"--backend {request.backend}: the job requests no GPUs.", hint=system.gpu_hint)
    default_ranks = (gpus, "one for each GPU that the job requests") if on_gpus else default_ranks
    ppn = default_ranks[0] if request.ppn is None else request.ppn
    if held:
        check_size(system, held, count + request.spare_nodes, ppn)
    own_stack = "`orch setup` of the installation whose Python the nodes use"
    node = Node(
        name=NODE_PREFIX,
        address=NODE_PREFIX,
        python=python,
        facts=replace(facts, gpus=tuple(Gpu(index=number, name="GPU") for number in range(gpus))),  # not the host's
        via=(system.launcher,),
        repair=REPAIR.format(user_python.path) if user_python else own_stack,
        user_python=user_python,
    )
    names = (f"{NODE_PREFIX}-{number}" for number in range(count))
    nodes = tuple(replace(node, name=name, address=name) for name in names)
    by_default = f", {default_ranks[1]}" if request.ppn is None else ""
    return resolve.later_nodes(
        NODE_PREFIX,
        count,
        ppn=ppn,
        gpus=gpus,
        threads=system.threads_per_rank(batch.options, ppn or 1),
        reason=f"{ppn} on each node{by_default}; equal shares of the cores that the job is given",
        nodes=Choice(nodes),
        software="the image has" if batch.image else "the nodes have",
        with_stack=() if batch.image else nodes[:1],  # the libraries of an image are unknown until its ranks run
    )


def choose_launcher(request: TrainRequest, loaded: Inputs, system: BatchSystem) -> tuple[str, Decision]:
    """Return the launcher, and the decision about the MPI implementation.

    Raises:
        PlanError: if the launcher or the MPI implementation does not work on the batch system.
    """
    name, names = request.launcher or system.launcher, tuple(dict.fromkeys((system.launcher, *launchers.LAUNCHERS)))
    launchers.check_launcher_name(name, names, system.title, request.mpi)
    if name not in launchers.WITH_MPI:
        return name, Decision(topic="mpi", value="")
    mpi = launchers.choose_mpi(loaded.cluster, loaded.stack, request.mpi)
    if mpi.value not in MPI:
        launcher = system.own_launcher or "torchrun"
        raise PlanError.about("mpi-of-system", mpi=mpi, system=system, names=" or ".join(MPI), launcher=launcher)
    return name, mpi


def with_size(batch: BatchSettings) -> BatchSettings:
    """Return the settings with a request for whole nodes, unless an option limits the share of a node.

    An allocation that is held has its size already.
    """
    if batch.held:
        return batch
    added = batch.system.default_options(batch.options)
    values = {name: value for name, (value, _) in added.items()}
    reasons = {name: reason for name, (_, reason) in added.items()}
    return replace(batch, options={**batch.options, **values}, sources={**batch.sources, **reasons})


def check_size(system: BatchSystem, allocation: Allocation, nodes: int, ppn: int) -> None:
    """Raise PlanError if the ranks do not fit the allocation that the user holds."""
    size, job = len(allocation.node_cpus), allocation.job
    if nodes > size:
        raise PlanError.about("small-allocation", job=job, size=counted(size, "node"), nodes=nodes, system=system)
    fewest = min(allocation.node_cpus[:nodes])
    if ppn > fewest:
        raise PlanError.about("few-cpus", job=job, cpus=fewest, ppn=ppn, system=system)


LOGIN = RunNode(node="this machine")
LOGIN_PYTHON = "python3"  # on the host with the system's programs, which may lack the stack


def plan_job(request: TrainRequest, loaded: Inputs, batch: BatchSettings, nodes: RunNodes, run_paths: RunPaths) -> Plan:
    """Return the plan of a request as one job.

    Raises:
        PlanError: if the request cannot run as it is.
        RequestError: if an option or a setting is invalid.
    """
    plan, config = plan_run(request, loaded, batch, nodes, run_paths)
    preparation: tuple[RunProgram, ...] = ()
    if run_paths.resume:  # another job starts the next attempt
        python = LOGIN_PYTHON if batch.login else plan.run.python
        program = f"{plan.run.train}/node.py"
        command = (python, program, "prepare-attempt", plan.run.run_dir, job_file(batch.system.name))
        preparation = (RunProgram(nodes=(login_of(batch),), command=command),)
    return replace(plan, steps=(*plan.steps, *preparation, submit_step([("", plan, config)], batch, run_paths)))


# The label of a run among those of an array, '' for a single run; its plan; and the settings of orch's program.
PlannedRun = tuple[str, Plan, JobConfig]


def submit_step(
    runs: Sequence[PlannedRun], batch: BatchSettings, run_paths: RunPaths, max_active: int | None = None
) -> SubmitScript:
    """Return the step that submits the script of a run, or of the runs of an array.

    Args:
        runs: the runs.
        batch: the settings for the batch system.
        run_paths: the identity and the folder of the run or of the array.
        max_active: the number of runs of an array that may be active at once; None for no limit.
    """
    system, held, (_, plan, config) = batch.system, batch.held, runs[0]
    job = JobRequest(
        name=f"{JOB_NAME_PREFIX}{run_paths.run_id if len(runs) > 1 else plan.run.run_id}",
        nodes=config.nodes + config.spare_nodes,
        ppn=config.ppn,
        survives_nodes=any(option.startswith("--max-restarts") for option in config.options),
        tasks=len(runs) if len(runs) > 1 else 0,  # an array of one run is a job with the name of the run
        max_active=max_active,
    )
    options = () if held else tuple(system.job_options(job, batch.options))  # an allocation has its options already
    return SubmitScript(
        nodes=(login_of(batch),) if batch.login else (),
        run_dir=run_paths.run_dir,
        script=render(runs, batch, options),
        name=job.name,
        options=options,
        program=system.step_program if held else system.submitter,
        allocation=held.job if held else "",
    )


def plan_run(
    request: TrainRequest, loaded: Inputs, batch: BatchSettings, nodes: RunNodes, run_paths: RunPaths
) -> tuple[Plan, JobConfig]:
    """Return the plan of a run, whose steps do not submit it yet, and the settings of orch's program in the job.

    Raises:
        PlanError: if the request cannot run as it is.
        RequestError: if an option or a setting is invalid.
    """
    launcher, mpi = choose_launcher(request, loaded, batch.system)
    contained = batch.image is not None
    resolved = resolve.resolve(request, loaded, nodes, run_paths, launcher=launcher, mpi=mpi, contained=contained)
    node0 = resolved.nodes.value[0]
    files = files_of(resolved, batch)
    launch = launch_of(resolved, batch, files.paths)
    decisions = (
        *all_decisions(resolved.stack),
        *job_decisions(resolved, batch),
        *all_decisions(resolved.layout),
        *resolve.gpu_decisions(resolved.nodes.value, resolved.backend.value),
        Decision(topic="launcher", value=launcher, reason=launch.summary),
        *([batch.image.describe()] if batch.image else ()),
        *all_decisions(resolved.backend, resolved.precision, resolved.preload),
        *training.restart_decisions(resolved),
        *resolve.python_decisions(node0),
    )
    plan = training.new_plan(
        resolved,
        decisions=decisions,
        nodes=tuple(RunNode(node=node.name) for node in resolved.nodes.value),
        python=node0.python,
        target=batch.system.name,
        location=values.record(JobLocation(name=f"{JOB_NAME_PREFIX}{run_paths.run_id}", login=batch.login or "")),
    )
    config = config_of(resolved, batch, launch)
    if batch.image:
        # The settings that depend on libraries of the nodes are left out, because the image has its own.
        folders = shared_folders(run_paths, files.paths.get(resolved.recipe.script, ""), files.paths.values())
        text = batch.image.file(folders, run_paths.run_dir, preload=config.preload)
        config = replace(config, torch=None, preload=(), files={**config.files, protocol_files.CONTAINER: text})
    return replace(plan, steps=files.sent, fingerprints={node0.facts.fingerprint: "all nodes"}), config


def files_of(resolved: Resolved, batch: BatchSettings) -> run_files.Files:
    """Return the paths of the run's files as the ranks find them, and the steps that copy them.

    Shared folders have the same path everywhere. Other files and train/ are sent if the run is started over a login
    node.
    """
    run_paths, host = resolved.run_paths, (login_of(batch),)
    python = LOGIN_PYTHON if batch.login else resolved.nodes.value[0].python
    files = run_files.sent_files(resolved, host, python=python, is_shared=not batch.login)
    if not batch.login:
        return files
    train = SendFolder(nodes=host, source=run_paths.train_here, path=run_paths.train)
    return replace(files, sent=(train, *files.sent))


def login_of(batch: BatchSettings) -> RunNode:
    """Return the host with the system's programs."""
    return RunNode(node=batch.login, via=("ssh", "--", batch.login)) if batch.login else LOGIN


def launch_of(resolved: Resolved, batch: BatchSettings, paths: Mapping[str, str]) -> launchers.Launch:
    """Return the command that starts the ranks; the job fills in the address of node0."""
    python, system, run_paths = resolved.nodes.value[0].python, batch.system, resolved.run_paths
    ranks = training.rank_command(resolved, python, paths)
    if resolved.launcher == system.own_launcher:
        head = (python, f"{run_paths.train}/node.py", f"{system.name}-ranks", run_paths.run_dir)
        options = (f"--{name}={value}" for name, value in batch.launcher.items())
        return launchers.Launch(command=Command(argv=(*head, *options, "--", *ranks)), summary=system.launcher_summary)
    links = tuple(
        Link(node=node.name, interface=NODE_PREFIX, address=NODE0, reason="") for node in resolved.nodes.value
    )
    spec = training.launch_spec(resolved, ranks=ranks, links=links, address=NODE0)
    return launchers.LAUNCHERS[resolved.launcher](spec)


def job_decisions(resolved: Resolved, batch: BatchSettings) -> Iterator[Decision]:
    """Yield the decisions about the job: its login node, nodes, allocation or options, and setup commands."""
    system = batch.system
    if batch.login:
        yield Decision(topic="login", value=batch.login, reason="by SSH")
    spare_nodes = resolved.request.spare_nodes
    spare = f" and {spare_nodes} spare" if spare_nodes else ""
    yield Decision(topic="nodes", value=f"{len(resolved.nodes.value)}{spare}", reason=f"chosen by {system.title}")
    if batch.held:
        reason = f"already held; {system.new_job_hint[:-1]}"
        yield Decision(topic="allocation", value=batch.held.job, reason=reason)
        if unused := ", ".join(f"{name} ({batch.sources[name]})" for name in batch.options):
            reason = f"options of {system.submitter} do not change an allocation"
            yield Decision(topic="without", value=unused, reason=reason)
    for name, value in batch.options.items() if not batch.held else ():
        reasons = (batch.sources.get(name), system.explain_option(name, batch.options))
        yield Decision(topic=f"{system.name} {name}", value=value or "yes", reason="; ".join(filter(None, reasons)))
    for command in batch.setup:
        yield Decision(topic="setup", value=command, reason="requested")


def config_of(resolved: Resolved, batch: BatchSettings, launch: launchers.Launch) -> JobConfig:
    """Return the settings for orch's program in the job."""
    request, recipe, run_paths = resolved.request, resolved.recipe, resolved.run_paths
    backend, system = resolved.backend.value, batch.system
    launcher_env = launch.command.env
    if system.launcher_env:  # Many sites forbid ssh between their nodes: the batch system starts hydra's proxies.
        hydra = ("I_MPI_HYDRA", "HYDRA")
        variables = {name: value for name, value in launcher_env.items() if not name.startswith(hydra)}
        launcher_env = {**variables, **system.launcher_env}
    return JobConfig(
        system=system.name,
        nodes=len(resolved.nodes.value),
        spare_nodes=request.spare_nodes,
        ppn=resolved.layout.value.rank_places[0].local_world_size,
        port=run_files.master_port(run_paths.run_id),
        backend=backend.name,
        backend_module=backend.module,
        setvars=backend.setvars,
        timeout_seconds=run_files.TIMEOUT_SECONDS,
        env={
            **ALWAYS,
            **backend.env,
            **launch.environment,
            **training.rank_variables(resolved, run_files.module_folders(recipe, run_paths.run_dir, run_paths.store)),
        },
        preload=tuple(resolved.stack.value.preload),
        torch=resolved.nodes.value[0].facts.packages.get("torch"),
        needs_bf16=resolved.precision.value == "bf16" and not request.allow_slow_bf16,
        mpi=resolved.mpi.value,
        launcher=launch.command.argv,
        launcher_env=dict(launcher_env),
        files={**launch.files, **launch.shared, **system.node_module},
        options=training.supervisor_options(resolved, launch),
        requeue=system.can_resume(batch.options) and batch.held is None,
        max_requeues=batch.max_requeues,
        precision=training.run_precision(resolved),
        working_directory=run_files.working_directory(recipe.project, run_paths.run_dir),
        on_gpus=backend.gpu,
    )


def render(runs: Sequence[PlannedRun], settings: BatchSettings, options: Sequence[str]) -> str:
    """Return the script of a run, or of the runs of an array, with these options of the job."""
    system, (label, plan, _) = settings.system, runs[0]
    is_array, first, template = bool(label), plan.run, {**TEMPLATE, **system.template}
    of_one_run = ("run", "array", "resume") if is_array else ()
    decisions = [decision for decision in first.decisions if decision.topic not in of_one_run]
    return render_template(
        "batch/job.sh.j2",
        quote=shlex.quote,
        system=system,
        template=template,
        options=options,
        decisions=[one_line(decision.describe()) for decision in decisions],
        is_array=is_array,
        runs=[
            {"label": one_line(label), "dir": plan.run.run_dir, "config": json.dumps(values.record(config), indent=1)}
            for label, plan, config in runs
        ],
        config_file=CONFIG,
        run_dir='"$run_dir"' if is_array else shlex.quote(first.run_dir),
        output=template["array_output" if is_array else "output"],
        setup=settings.setup,
        program=shlex.join((first.python, f"{first.train}/node.py", "job")),
    )
