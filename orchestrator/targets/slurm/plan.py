"""TrainRequest -> Plan: the script of a job. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from orch_node.protocol import files as run_files
from orch_node.protocol.container import PYXIS
from orch_node.protocol.environment import ALWAYS, defaults
from orch_node.protocol.record import RunNode
from orch_node.protocol.slurm import NODE0, JobConfig

from orchestrator.launchers import LAUNCHERS, RESTARTING, Job, Launch
from orchestrator.model.command import Command
from orchestrator.model.decision import Decision, all_decisions
from orchestrator.model.links import Link
from orchestrator.planning.containers import shared_folders
from orchestrator.planning.plan import Plan, SendFolder, Step, SubmitScript
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.run_files import TIMEOUT_SECONDS, master_port
from orchestrator.planning.sent_files import Files, in_train, named_files, sent_files
from orchestrator.planning.training import (
    Home,
    choose_output,
    explain_restarts,
    origin_of,
    request_key,
    run_precision,
    run_record,
    script_command,
)
from orchestrator.targets.slurm import location as locations
from orchestrator.targets.slurm.allocation import WAY_OUT
from orchestrator.targets.slurm.location import JobLocation
from orchestrator.targets.slurm.resolve import SRUN, WORD, Inputs, Resolved, resolve
from orchestrator.targets.slurm.script import ROOM_SECONDS, render, time_seconds
from orchestrator.targets.slurm.settings import SlurmSettings

TARGET = "slurm"
LOGIN = RunNode(node="login")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """A new run: `run_dir` and `train` are folders that all nodes see, `train_here` is this
    machine's. `started_by`: user@host; `created`: since the epoch."""

    run_id: str
    run_dir: str
    train: str
    train_here: str
    started_by: str
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A run of which all is decided but the script that starts it."""

    plan: Plan
    config: JobConfig
    files: Files
    slurm: SlurmSettings


def plan_slurm(request: TrainRequest, inputs: Inputs, site: SlurmSite, resume: Resume | None = None) -> Plan:
    """Decide how to run a request as a job. Raises PlanError, RequestError."""
    one = decide(request, inputs, site, resume)
    text = render(one.plan, one.config, one.slurm)
    held = one.slurm.held.job if one.slurm.held else ""
    host = login_of(one.slurm)
    step = SubmitScript(at=host, run_dir=site.run_dir, script=text, allocation=held)
    return replace(one.plan, steps=(*sent_first(one, site), step))


def decide(request: TrainRequest, inputs: Inputs, site: SlurmSite, resume: Resume | None = None) -> Decided:
    """Raises PlanError, RequestError."""
    chosen = resolve(request, inputs, resume)
    output = choose_output(chosen.training.recipe, site.run_dir, resume)
    files = files_of(chosen, site)
    script = script_command(request, chosen.training, files.paths, output.value)
    launch = launch_of(request, inputs, chosen, site, script)
    decisions = (
        Decision(topic="run", value=site.run_id),
        *all_decisions(chosen.stack),
        *tell_job(request, chosen),
        *describe_allocation(inputs.slurm),
        *tell_local(inputs),
        *all_decisions(chosen.layout),
        Decision(topic="launcher", value=chosen.launcher, reason=launch.summary),
        *all_decisions(chosen.image, chosen.backend, chosen.precision, chosen.preload, output),
        *explain_restarts(request.max_restarts, chosen.training.recipe, request.min_nodes),
    )
    plan = Plan(
        run=run_record(
            chosen.training,
            site,
            home_of(chosen, inputs, site, output.value),
            key=key_of(request, chosen),
            decisions=decisions,
        ),
        origin=origin_of(request, chosen.training, {inputs.facts.fingerprint: "all nodes"}),
        steps=(),
    )
    config = config_of(request, chosen, inputs, site, launch)
    config = replace(config, precision=run_precision(chosen.training, output.value))
    if chosen.image.value:
        config = contained(config, chosen, files, site)
    return Decided(plan=plan, config=config, files=files, slurm=chosen.slurm)


def contained(config: JobConfig, chosen: Resolved, files: Files, site: SlurmSite) -> JobConfig:
    """The same, with ranks in an image: its libraries are not those of the nodes. Raises
    PlanError."""
    image = chosen.image.value
    assert image is not None
    base = str(PurePosixPath(site.run_dir).parent)
    script = files.paths.get(chosen.training.recipe.script, "")
    folders = shared_folders(base, site.train, script, files.paths.values())
    text = image.file(folders, site.run_dir, preload=config.preload)
    return replace(config, torch=None, preload=(), files={**config.files, run_files.CONTAINER: text})


def sent_first(one: Decided, site: SlurmSite) -> tuple[Step, ...]:
    """What goes to a login node before the script: nothing where all is seen there."""
    if not one.slurm.login:
        return ()
    at = login_of(one.slurm)
    return (SendFolder(at=at, source=site.train_here, path=site.train), *one.files.sent)


def files_of(chosen: Resolved, site: SlurmSite) -> Files:
    """As the ranks find them: at the same place, on shared folders; what lies in train/ where
    orch's programs of the nodes are. From another machine, what is not there is sent."""
    recipe, settings = chosen.training.recipe, chosen.training.settings
    if chosen.slurm.login:
        return sent_files(recipe, settings, (login_of(chosen.slurm),), site)
    names = named_files(recipe, settings)
    return Files(paths={path: in_train(path, site) or path for path in names}, sent=())


def login_of(slurm: SlurmSettings) -> RunNode:
    """The host with Slurm's programs."""
    if not slurm.login:
        return LOGIN
    return RunNode(node=slurm.login, via=("ssh", "--", slurm.login))


def launch_of(
    request: TrainRequest, inputs: Inputs, chosen: Resolved, site: SlurmSite, script: tuple[str, ...]
) -> Launch:
    """What starts the ranks; node0's address in it is still to be filled in."""
    image = chosen.image.value
    python = image.python if image and image.engine == PYXIS else inputs.ranks_python
    ranks = (python, f"{site.train}/node.py", "rank", "--run", site.run_dir, "--", *script)
    if chosen.launcher == SRUN:
        head = (inputs.python, f"{site.train}/node.py", "slurm-ranks", site.run_dir)
        words = (*head, f"--pmi={inputs.slurm.pmi}", "--", *ranks)
        return Launch(command=Command(argv=words), summary="one step of Slurm for all ranks")
    return LAUNCHERS[chosen.launcher](
        Job(
            nodes=chosen.nodes,
            layout=chosen.layout.value,
            links=tuple(Link(node=one.name, interface=WORD, address=NODE0, reason="") for one in chosen.nodes),
            run_dir=site.run_dir,
            train=site.train,
            ranks=ranks,
            address=NODE0,
            port=master_port(site.run_id),
            mpi=chosen.mpi.value or "intel",
            precision=chosen.precision.value,
            ipex=request.ipex,
            restarts=request.max_restarts if chosen.launcher in RESTARTING else 0,
            min_nodes=request.min_nodes,
        )
    )


def tell_job(request: TrainRequest, chosen: Resolved) -> tuple[Decision, ...]:
    nodes = str(len(chosen.nodes))
    spare = f" and {request.spare_nodes} spare" if request.spare_nodes else ""
    options = (
        Decision(topic=f"slurm {name}", value=value or "yes", reason=reason_of(chosen.slurm, name))
        for name, value in chosen.slurm.sbatch.items()
    )
    setup = (Decision(topic="setup", value=one, reason="asked for") for one in chosen.slurm.setup)
    login = chosen.slurm.login
    return (
        *((Decision(topic="login", value=login, reason="by SSH"),) if login else ()),
        Decision(topic="nodes", value=nodes + spare, reason="those that Slurm gives"),
        *options,
        *setup,
    )


def describe_allocation(slurm: SlurmSettings) -> tuple[Decision, ...]:
    """Return the allocation that the run is a step of, and the options without effect in it."""
    if slurm.held is None:
        return ()
    reason = f"held already; {WAY_OUT[:-1]}"
    held = Decision(topic="allocation", value=slurm.held.job, reason=reason)
    unused = ", ".join(f"{name} ({slurm.why[name]})" for name in slurm.sbatch)
    reason = "options of sbatch do not change an allocation"
    return (held, *([Decision(topic="without", value=unused, reason=reason)] if unused else []))


def reason_of(slurm: SlurmSettings, option: str) -> str:
    """Return where an option of sbatch comes from; for a short time= also what that means."""
    reason = slurm.why.get(option, "")
    seconds = time_seconds(slurm.sbatch[option]) if option == "time" else None
    if seconds is None or seconds > ROOM_SECONDS or "signal" in slurm.sbatch:
        return reason
    return (
        f"{reason}; no time for training: {ROOM_SECONDS} s of it are reserved for a checkpoint, "
        "unless --slurm signal=B:TERM@SECONDS says less"
    )


def tell_local(inputs: Inputs) -> tuple[Decision, ...]:
    if inputs.local is None:
        return ()
    why = f"each node's own, filled once from {inputs.local.archive}"
    return (Decision(topic="local stack", value=inputs.local.folder, reason=why),)


def home_of(chosen: Resolved, inputs: Inputs, site: SlurmSite, output_dir: str | None) -> Home:
    at = JobLocation(name=f"orch-{site.run_id}", login=chosen.slurm.login or "")
    return Home(
        nodes=tuple(RunNode(node=one.name) for one in chosen.nodes),
        run_dir=site.run_dir,
        train=site.train,
        python=inputs.python,
        output_dir=output_dir,
        target=TARGET,
        location=locations.render(at),
    )


def key_of(request: TrainRequest, chosen: Resolved) -> str:
    image = chosen.image.value.path if chosen.image.value else ""
    hosts = (TARGET, chosen.slurm.login or "", chosen.slurm.root or "", *([image] if image else ()))
    names = (chosen.launcher, request.nodes or "")
    return request_key(request, chosen.training, hosts=hosts, names=names)


def config_of(request: TrainRequest, chosen: Resolved, inputs: Inputs, site: SlurmSite, launch: Launch) -> JobConfig:
    backend = chosen.backend.value
    return JobConfig(
        run_id=site.run_id,
        nodes=len(chosen.nodes),
        spare_nodes=request.spare_nodes,
        ppn=chosen.layout.value.places[0].local_world_size,
        port=master_port(site.run_id),
        backend=backend.name,
        backend_module=backend.module,
        setvars=backend.setvars,
        timeout_seconds=TIMEOUT_SECONDS,
        env={**ALWAYS, **dict(backend.env), **launch.environment, **defaults(chosen.training.recipe.environment)},
        preload=tuple(chosen.stack.value.preload),
        torch=inputs.facts.packages.get("torch"),
        needs_bf16=chosen.precision.value == "bf16" and not request.allow_slow_bf16,
        launch=chosen.launcher,
        mpi=chosen.mpi.value,
        launcher=launch.command.argv,
        launcher_env=hydra_by_srun(dict(launch.command.env)),
        files={**launch.files, **launch.shared},
        options=supervision(request, chosen, launch),
        requeue="no-requeue" not in chosen.slurm.sbatch and chosen.slurm.held is None,
        max_requeues=chosen.slurm.max_requeues,
        local=inputs.local,
    )


def hydra_by_srun(env: dict[str, str]) -> dict[str, str]:
    """hydra's variables, without those of ssh: many sites forbid it between their nodes."""
    kept = {name: value for name, value in env.items() if not name.startswith(("I_MPI_HYDRA", "HYDRA"))}
    return {**kept, "I_MPI_HYDRA_BOOTSTRAP": "slurm", "HYDRA_LAUNCHER": "slurm"}


def supervision(request: TrainRequest, chosen: Resolved, launch: Launch) -> tuple[str, ...]:
    """Options of the supervisor."""
    recipe = chosen.training.recipe
    restarting = chosen.launcher in RESTARTING and request.max_restarts
    numbers = (("size", launch.size_at), ("nodes", launch.nodes_at))
    places = [f"--{name}-at={at}" for name, at in numbers if at is not None]
    return (
        f"--stall-timeout={request.stall_timeout:g}",
        *([f"--max-restarts={request.max_restarts}"] if request.max_restarts else []),
        *(["--launcher-restarts"] if restarting else []),
        *(["--elastic", *places] if recipe.elastic or request.min_nodes else []),
        *(["--keeps-batch"] if recipe.elastic else []),
        *([f"--min-nodes={request.min_nodes}"] if request.min_nodes else []),
        *([f"--path={launch.path}"] if launch.path else []),
    )
