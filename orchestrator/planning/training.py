"""The decisions about training that all targets share, and the run's record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from orch_node.protocol.environment import BINDINGS, PYTHON_PATH, USER_PYTHON
from orch_node.protocol.files import PRECISION
from orch_node.protocol.layout import RunPrecision
from orch_node.protocol.precision import AUTO, PLACEHOLDER
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.model.cluster import UserPython
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.layout import Layout
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe, Value, as_arguments
from orchestrator.planning.plan import Origin
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.stacks.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The decisions; `settings` are all of the recipe's, `stack` is as the backend needs it."""

    recipe: Recipe
    settings: Mapping[str, Value]
    stack: Stack
    backend: Backend
    precision: str
    layout: Layout


class NewRun(Protocol):
    """A run that is about to start; started_by is user@host, created are seconds since the epoch."""

    @property
    def run_id(self) -> str: ...
    @property
    def started_by(self) -> str: ...
    @property
    def created(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The location of a run.

    Attributes:
        nodes: its nodes, node0 first.
        run_dir: its folder on the nodes, an absolute path.
        train: the folder of train/ on the nodes, an absolute path.
        python: the interpreter of orch's programs.
        output_dir: the script's output folder.
        target: the name of the target.
        location: what the target needs to find the run.
    """

    nodes: tuple[RunNode, ...]
    run_dir: str
    train: str
    python: str
    output_dir: str | None = None
    target: str = "ssh"
    location: Mapping[str, Any] = field(default_factory=dict)


def choose_output(recipe: Recipe, run_dir: str, resume: Resume | None) -> Choice[str | None]:
    """Return the script's --output_dir; None for a user's own script."""
    if recipe.own_script:
        folder = None
    else:
        folder = resume.output_dir if resume else f"{run_dir}/output"
    if resume is None:
        return Choice(folder)
    reason = f"the same request, {resume.state}; --fresh starts from the beginning"
    return Choice(folder, (Decision(topic="resume", value=f"carries on {resume.run_id}", reason=reason),))


def explain_restarts(restarts: int, recipe: Recipe, min_nodes: int | None) -> tuple[Decision, ...]:
    """Return the number of restarts, and whether the run can continue on fewer nodes."""
    if not restarts:
        return ()
    if recipe.elastic:
        reason = "also without lost nodes: the recipe keeps its global batch, order and schedule"
    elif min_nodes:
        reason = f"on {min_nodes} nodes or more, as requested; the script must adapt its global batch"
    else:
        reason = "on the same number of nodes: with fewer ranks the script would change its global batch"
    return (Decision(topic="restarts", value=str(restarts), reason=reason),)


def user_variables(
    request: TrainRequest, module_folders: tuple[str, ...] = (), python: UserPython | None = None
) -> dict[str, str]:
    """Return the environment variables that the user has set for all ranks, and those of the user's modules."""
    variables = dict((name, value) for name, _, value in (item.partition("=") for item in request.env))
    if python:
        variables |= {USER_PYTHON: python.path, **({BINDINGS: python.bindings} if python.bindings else {})}
    return {**variables, **({PYTHON_PATH: ":".join(module_folders)} if module_folders else {})}


def explain_environment(request: TrainRequest) -> tuple[Decision, ...]:
    """Return the variables of --env and --env-file."""
    if not request.env:
        return ()
    return (Decision(topic="environment", value=", ".join(request.env), reason="--env"),)


def explain_packages(recipe: Recipe) -> tuple[Decision, ...]:
    """Return the packages that are added to the stack, or what the script needs from its image."""
    if recipe.packages:
        return (recipe.packages.explain(),)
    if recipe.image_requirements:
        reason = f"it has to contain {recipe.image_requirements}; `orch image build --requirements` adds packages"
        return (Decision(topic="packages", value="those of the image", reason=reason),)
    return ()


def script_command(
    request: TrainRequest, training: Training, paths: Mapping[str, str], output_dir: str | None
) -> tuple[str, ...]:
    """Return the training script and its arguments, as the ranks run them.

    Args:
        request: the request.
        training: the decisions.
        paths: where the ranks find each local file.
        output_dir: the script's output folder.
    """
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
    """Return the record of a run; `key` is equal for requests that ask for the same training."""
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
        layout=training.layout.rank_places,
        target=home.target,
        location=dict(home.location),
    )


def request_key(request: TrainRequest, training: Training, *, hosts: tuple[str, ...], names: tuple[str, ...]) -> str:
    """Return a key that is equal for requests that ask for the same training.

    It is the first 12 digits of a SHA-256. The precision is not part of it: a run can be resumed
    in another one. `names` are whatever else distinguishes runs of a recipe on this target.
    """
    requested = [request.inventory, hosts, request.ppn, request.ipex, request.script_args, *request.env]
    decided = (training.stack.name, training.backend.name, *filter(None, [request.python]), *names)
    value = [training.recipe.script, sorted(training.settings.items()), requested, decided]
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def origin_of(request: TrainRequest, training: Training, fingerprints: Mapping[str, str]) -> Origin:
    return Origin(
        script=training.recipe.script_file,
        stack=training.stack.name,
        fingerprints=fingerprints,
        settings=training.settings,
        script_args=request.script_args,
        project=training.recipe.project,
        packages=training.recipe.packages,
    )
