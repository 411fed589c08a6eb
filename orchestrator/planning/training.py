"""What is trained, as every target decides it, and what a run's record says of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from orch_node.protocol.files import PRECISION
from orch_node.protocol.layout import RunPrecision
from orch_node.protocol.precision import AUTO, PLACEHOLDER
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.model.decision import Choice, Decision
from orchestrator.model.layout import Layout
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe, Value, as_arguments
from orchestrator.planning.plan import Origin
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.stacks.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """`settings`: of the recipe, all of them. `stack`: as the backend wants it."""

    recipe: Recipe
    settings: Mapping[str, Value]
    stack: Stack
    backend: Backend
    precision: str
    layout: Layout


class NewRun(Protocol):
    """A run that is about to be. `started_by`: user@host; `created`: since the epoch."""

    @property
    def run_id(self) -> str: ...
    @property
    def started_by(self) -> str: ...
    @property
    def created(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where a run will live: its nodes, node0 first, and absolute paths on them. `output_dir`: what
    its script gets; `target`: the engine that takes it; `location`: what that one needs to find
    it."""

    nodes: tuple[RunNode, ...]
    run_dir: str
    train: str
    python: str
    output_dir: str | None = None
    target: str = "ssh"
    location: Mapping[str, Any] = field(default_factory=dict)


def choose_output(recipe: Recipe, run_dir: str, resume: Resume | None) -> Choice[str | None]:
    """The folder that the script gets as --output_dir; an own script gets none."""
    told = () if resume is None else (tell_resume(resume),)
    folder = resume.output_dir if resume else f"{run_dir}/output"
    return Choice(None if recipe.own_script else folder, told)


def tell_resume(resume: Resume) -> Decision:
    why = f"the same request, {resume.state}; --fresh starts over"
    return Decision(topic="resume", value=f"carries on {resume.run_id}", reason=why)


def tell_restarts(restarts: int, recipe: Recipe, fewest: int | None) -> tuple[Decision, ...]:
    """`fewest`: with how few nodes the run may go on, where somebody has asked for that."""
    if not restarts:
        return ()
    if recipe.elastic:
        why = "without lost nodes, too: the recipe then keeps its global batch, order and schedule"
    elif fewest:
        why = f"on {fewest} nodes or more, as asked; the global batch is then the script's affair"
    else:
        why = "on as many nodes: with fewer ranks the script would train with another global batch"
    return (Decision(topic="restarts", value=str(restarts), reason=why),)


def script_command(
    request: TrainRequest, training: Training, paths: Mapping[str, str], output_dir: str | None
) -> tuple[str, ...]:
    """The training script and its arguments, as the ranks see them. `paths`: file of this machine
    -> where the ranks find it."""
    recipe = training.recipe
    mapped = {name: paths[str(value)] if name in recipe.paths else value for name, value in training.settings.items()}
    return (
        *recipe.program(paths),
        *as_arguments(mapped),
        *precision_arguments(training),
        *(["--use_ipex"] if request.ipex else []),
        *([f"--output_dir={output_dir}"] if output_dir else []),
        *request.script_args,
    )


def precision_arguments(training: Training) -> tuple[str, ...]:
    """Return the script's arguments for the precision, or their placeholder if ranks choose it."""
    if training.precision == AUTO:
        return (PLACEHOLDER,)
    return training.recipe.precisions.get(training.precision, ())


def run_precision(training: Training, output_dir: str | None) -> RunPrecision | None:
    """Return what the ranks need to choose the precision; None if the plan has chosen it."""
    if training.precision != AUTO:
        return None
    file = f"{output_dir}/{PRECISION}" if output_dir else ""
    return RunPrecision(arguments=dict(training.recipe.precisions), file=file)


def run_record(training: Training, new: NewRun, home: Home, *, key: str, decisions: tuple[Decision, ...]) -> RunRecord:
    """`key` is equal for requests that ask for the same training."""
    return RunRecord(
        run_id=new.run_id,
        key=key,
        node0=home.nodes[0],
        nodes=home.nodes,
        run_dir=home.run_dir,
        train=home.train,
        python=home.python,
        recipe=training.recipe.name,
        resumes=training.recipe.resumes,
        output_dir=home.output_dir,
        backend=training.backend.name,
        precision=training.precision,
        started_by=new.started_by,
        created=new.created,
        decisions=decisions,
        layout=training.layout.places,
        target=home.target,
        location=dict(home.location),
    )


def origin_of(request: TrainRequest, training: Training, fingerprints: Mapping[str, str]) -> Origin:
    return Origin(
        script=training.recipe.script_file,
        stack=training.stack.name,
        fingerprints=fingerprints,
        settings=training.settings,
        script_args=request.script_args,
    )
