"""The parts of a plan that all targets share: the run's record, its decisions, what ranks run and their restarts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from orch_node.protocol import environment
from orch_node.protocol.environment import TORCHS_KERNELS
from orch_node.protocol.files import PRECISION
from orch_node.protocol.layout import AUTO, PRECISION_PLACEHOLDER, RunPrecision
from orch_node.protocol.outcome import FAILED
from orch_node.protocol.record import RunRecord

from orchestrator.errors import PlanError
from orchestrator.model.cluster import UserPython
from orchestrator.model.decision import Decision
from orchestrator.model.printable import enumeration, find_secrets, mask, masked
from orchestrator.model.recipe import Recipe, as_arguments
from orchestrator.planning.accelerate_options import AccelerateOptions
from orchestrator.planning.launchers import Launch, LaunchSpec
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume
from orchestrator.planning.resolve import Resolved
from orchestrator.planning.run_files import master_port, project_of_copy
from orchestrator.stacks.stack import TORCH


def new_plan(resolved: Resolved, decisions: tuple[Decision, ...], **fields: Any) -> Plan:
    """Return the plan of a run, still without steps.

    Args:
        resolved: all that is decided.
        decisions: the target's decisions, to print first.
        fields: the other fields of the run's record: `nodes`, `python` and those that not all targets have.
    """
    request, recipe, run_paths = resolved.request, resolved.recipe, resolved.run_paths
    project, resume = project_of_copy(resolved), run_paths.resume
    variables = [variable for variable in request.env if not variable.startswith(f"{environment.FORCE_RESUME}=")]
    in_image = f"it has to contain {recipe.image_requirements}; `orch image build --requirements` adds packages"
    arguments = (*([f"preset={request.preset}"] if request.preset else []), *request.settings, *request.script_args)
    all_decisions = (
        Decision(topic="run", value=run_paths.run_id),
        *([Decision(topic="name", value=request.name)] if request.name else []),
        *request.defaults,
        *([resume_decision(recipe, resume)] if resume and resume.attempt > 1 else []),
        *decisions,
        *([Decision("environment", ", ".join(masked(variables)), "--env")] if variables else []),
        kernels_decision(resolved),
        *([project.decision()] if project else []),
        *(changed_project_decisions(recipe, resume) if resume else []),
        *([recipe.packages.decision()] if recipe.packages else []),
        *([Decision("packages", "those of the image", in_image)] if recipe.image_requirements else []),
        *([Decision(topic="settings", value="not checked", reason=recipe.unchecked)] if recipe.unchecked else []),
    )
    secrets = find_secrets((*request.env, *request.packages, *arguments))
    run = RunRecord(
        run_id=run_paths.run_id,
        node0=fields["nodes"][0],
        run_dir=run_paths.run_dir,
        train=run_paths.train,
        recipe=recipe.name,
        resumes=recipe.resumes,
        output_dir=resolved.output_dir,
        backend=resolved.backend.value.name,
        precision=resolved.precision.value,
        started_by=run_paths.started_by,
        created=run_paths.created,
        decisions=all_decisions,
        layout=resolved.layout.value.rank_places,
        name=request.name or "",
        arguments=tuple(mask(argument, secrets) for argument in arguments),
        **fields,
    )
    return Plan(run=run, request=request, resolved=resolved, project=project, hidden=secrets)


def launch_spec(resolved: Resolved, accelerate: AccelerateOptions | None = None, **fields: Any) -> LaunchSpec:
    """Return the ranks that a launcher has to start, and how.

    Args:
        resolved: the request in which everything is decided.
        accelerate: the user's configuration of accelerate.
        fields: `ranks`, `links` and `address`, as the target gives them.
    """
    request, run_paths = resolved.request, resolved.run_paths
    return LaunchSpec(
        nodes=resolved.nodes.value,
        layout=resolved.layout.value,
        run_dir=run_paths.run_dir,
        train=run_paths.train,
        port=(accelerate.port if accelerate else None) or master_port(run_paths.run_id),
        mpi=resolved.mpi.value or "intel",
        precision=resolved.precision.value,
        ipex=request.ipex,
        accelerate=accelerate.values if accelerate else {},
        on_gpus=resolved.backend.value.gpu
        or all(
            node.facts.gpus and not node.facts.packages.get(TORCH, "").endswith("+cpu")  # torch for its GPUs
            for node in resolved.nodes.value
        ),
        # The supervisor restarts runs with a copy of a project: it gives node0's files to the other nodes before.
        restarts=0 if resolved.recipe.project else request.max_restarts,
        min_nodes=request.min_nodes,
        **fields,
    )


def rank_command(resolved: Resolved, python: str, paths: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command of a rank, given its interpreter and where it finds each local file."""
    program = (python, f"{resolved.run_paths.train}/node.py", "rank", "--run", resolved.run_paths.run_dir)
    return (*program, "--", *script_command(resolved, paths))


def resume_decision(recipe: Recipe, resume: Resume) -> Decision:
    """Return the number of the attempt of a resumed run, and from where it continues."""
    if recipe.own_script:
        source = "the script finds the files of the run as it left them"
    elif recipe.resumes:
        source = "from the newest valid checkpoint"
    else:
        source = "the recipe saves no checkpoints and starts from the beginning"
    ended = resume.state if resume.state == FAILED else f"was {resume.state}"
    return Decision("resume", f"attempt {resume.attempt}", f"the last one {ended}; {source}")


def changed_project_decisions(recipe: Recipe, resume: Resume) -> Iterator[Decision]:
    """Yield which files of the project differ from those that a resumed run was started with."""
    if recipe.project and resume.project:
        changed = recipe.project.changes_since(resume.project)
        value = f"differs in {enumeration(changed)}" if changed else "as the run was started with"
        reason = "sent" if resume.sends_code else "not sent: --code sends them"
        yield Decision(topic="code", value=value, reason=reason if changed else "")


def restart_decisions(resolved: Resolved) -> Iterator[Decision]:
    """Yield the number of restarts, and whether the run can continue on fewer nodes."""
    restarts, min_nodes = resolved.request.max_restarts, resolved.request.min_nodes
    if resolved.recipe.elastic:
        reason = "also without lost nodes: the recipe keeps its global batch, order and schedule"
    elif min_nodes:
        reason = f"on {min_nodes} nodes or more, as requested; the script must adapt its global batch"
    else:
        reason = "on the same number of nodes: with fewer ranks the script would change its global batch"
    if restarts:
        yield Decision(topic="restarts", value=str(restarts), reason=reason)


def rank_variables(
    resolved: Resolved,
    module_folders: tuple[str, ...],
    python: UserPython | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the variables of all ranks that the recipe, the user and the user's modules set.

    Args:
        resolved: the request in which everything is decided, whose variables override all others.
        module_folders: where the ranks find the user's modules.
        python: the user's interpreter.
        settings: the variables in the user's settings of the target.
    """
    request = resolved.request
    requested = dict((name, value) for name, _, value in (item.partition("=") for item in request.env))
    variables = environment.planned_variables(resolved.recipe.environment, {**settings, **requested})
    if python:
        variables[environment.USER_PYTHON] = python.path
        variables |= {environment.BINDINGS: python.bindings} if python.bindings else {}
    folders = {environment.PYTHON_PATH: ":".join(module_folders)} if module_folders else {}
    stop = {environment.STOP_ON_NAN: "1"} if request.stop_on_nan else {}
    kernels = {environment.KERNELS: TORCHS_KERNELS} if request.kernels == TORCHS_KERNELS else {}
    resume = resolved.run_paths.resume
    first = {environment.PLANNED_WORLD_SIZE: str(resume.first_ranks)} if resume and resume.first_ranks else {}
    return {**variables, **folders, **stop, **kernels, **first}


def kernels_decision(resolved: Resolved) -> Decision:
    """Return whose kernels compute dropout, attention and matrix products.

    Raises:
        PlanError: if the value is unknown.
    """
    kernels = resolved.request.kernels
    if kernels not in (AUTO, TORCHS_KERNELS):
        raise PlanError(f"Unknown kernels '{kernels}'.", hint=f"Use {AUTO} or {TORCHS_KERNELS}.")
    if kernels == TORCHS_KERNELS:
        return Decision(topic="kernels", value=TORCHS_KERNELS, reason="requested")
    stack = resolved.stack.value
    if stack.bindings is None or stack.bindings.built_by != "orch":
        return Decision("kernels", TORCHS_KERNELS, f"stack '{stack.name}' has no package orch_kernels")
    computed = "dropout, attention, activations, losses and Adam on CPUs, BF16 layers with AMX, FP32 products on AMD"
    return Decision(topic="kernels", value="orch", reason=f"{computed}; --kernels {TORCHS_KERNELS} keeps torch's")


def script_command(resolved: Resolved, paths: Mapping[str, str]) -> tuple[str, ...]:
    """Return the training script and its arguments, as the ranks run them.

    Args:
        resolved: the request in which everything is decided.
        paths: where the ranks find each local file.
    """
    request, recipe, precision = resolved.request, resolved.recipe, resolved.precision.value
    mapped = {name: paths[str(value)] if name in recipe.paths else value for name, value in resolved.settings.items()}
    return (
        *(("-m", recipe.script) if recipe.module else (paths[recipe.script],)),
        *as_arguments(mapped),
        *((PRECISION_PLACEHOLDER,) if precision == AUTO else recipe.precisions.get(precision, ())),
        *(["--use_ipex"] if request.ipex else []),
        *([f"--output_dir={resolved.output_dir}"] if resolved.output_dir else []),
        *request.script_args,
    )


def run_precision(resolved: Resolved) -> RunPrecision | None:
    """Return what the ranks need to choose the precision; None if the plan has chosen it."""
    if resolved.precision.value != AUTO:
        return None
    file = f"{resolved.output_dir}/{PRECISION}" if resolved.output_dir else ""
    return RunPrecision(arguments=dict(resolved.recipe.precisions), file=file)


def supervisor_options(resolved: Resolved, launch: Launch) -> tuple[str, ...]:
    """Return the options of the supervisor that do not depend on the target."""
    request, recipe, resume = resolved.request, resolved.recipe, resolved.run_paths.resume
    positions = (("size", launch.size_at), ("nodes", launch.nodes_at))  # of these numbers in the launcher's command
    position_options = [f"--{name}-at={position}" for name, position in positions if position is not None]
    return (
        f"--stall-timeout={request.stall_timeout:g}",
        *([f"--first-attempt={resume.attempt}"] if resume and resume.attempt > 1 else []),
        *([f"--max-restarts={request.max_restarts}"] if request.max_restarts else []),
        *(["--launcher-restarts"] if launch.restarts else []),
        *(["--elastic", *position_options] if recipe.elastic or request.min_nodes else []),
        *(["--keeps-batch"] if recipe.elastic else []),
        *([f"--min-nodes={request.min_nodes}"] if request.min_nodes else []),
        *([f"--path={launch.path}"] if launch.path else []),
    )
