"""TrainRequest -> Plan: what will run where, and why. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator import choices, network, rank_files
from orchestrator.backend import Backend, backend_of
from orchestrator.card import with_card
from orchestrator.cluster import Cluster, Node
from orchestrator.command import Command
from orchestrator.errors import PlanError
from orchestrator.launchers import LAUNCHERS
from orchestrator.layout import Layout, lay_out
from orchestrator.names import fold
from orchestrator.network import Link
from orchestrator.plan import Decision, Plan, PutFile, SendFile, StartRun, Step, Target
from orchestrator.recipe import Recipe, Value, as_arguments
from orchestrator.stack import Stack

# Half of the time after which torch.distributed gives a collective up by itself, and longer than
# any step, evaluation or compilation that reports nothing should take.
STALL_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What was asked for on the command line; None where the user left it open."""

    recipe: str
    inventory: str = "local"
    nodes: str | None = None
    exclude: str | None = None
    ppn: int | None = None
    stack: str = "current"
    backend: str | None = None
    precision: str | None = None
    allow_slow_bf16: bool = False
    ccl_workers: int = 0
    ipex: bool = False
    preset: str | None = None
    settings: Mapping[str, Value]
    script_args: tuple[str, ...] = ()
    fresh: bool = False
    stall_timeout: float = STALL_SECONDS
    max_restarts: int = 0
    spare_nodes: int = 0
    queue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An unfinished run of the same request, whose output directory is carried on."""

    run_id: str
    state: str
    output_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Absolute folders: the run's on its nodes, train/ there, train/ on this machine, and the
    claims of all runs on a node's cores. `started_by`: user@host; `created`: since the epoch."""

    run_id: str
    run_dir: str
    train: str
    train_here: str
    claims: str
    started_by: str
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where files of this machine are found by the ranks, and the copies that this takes."""

    paths: Mapping[str, str]
    sent: tuple[SendFile, ...]


def plan_train(
    request: TrainRequest,
    *,
    cluster: Cluster,
    recipe: Recipe,
    stack: Stack,
    site: Site,
    resume: Resume | None = None,
) -> Plan:
    """Decide how to run a request. Raises PlanError, RequestError."""
    nodes, spares = cluster.chosen(), cluster.spares()
    everywhere = (*nodes, *spares)
    links = network.links(everywhere)
    choices.check_recipe_fits(recipe, stack)
    stack = stack.for_backend(stack.backend(request.backend))
    for node in everywhere:
        stack.check(node)
    backend = backend_of(stack)
    precision = choices.choose_precision(
        recipe, everywhere, asked=request.precision, allow_slow=request.allow_slow_bf16
    )
    layout = lay_out(nodes, request.ppn, choices.choose_workers(backend, request.ccl_workers))
    if request.ipex:
        choices.check_ipex(recipe, stack, precision=precision.value, ranks=layout.world_size)
    preload, tell_preload = choices.choose_preload(stack, everywhere)
    settings = recipe.settings(request.preset, request.settings)
    files = reachable_files(recipe, settings, everywhere, site)
    output_dir = None if recipe.own_script else output_of(site, resume)
    script = (
        files.paths[recipe.script],
        *as_arguments(map_paths(recipe, settings, files)),
        *recipe.precisions.get(precision.value, ()),
        *(["--use_ipex"] if request.ipex else []),
        *([f"--output_dir={output_dir}"] if output_dir else []),
        *request.script_args,
    )
    plan = Plan(
        run_id=site.run_id,
        node0=target(nodes[0]),
        nodes=targets(everywhere),
        run_dir=site.run_dir,
        train=site.train,
        python=nodes[0].python,
        started_by=site.started_by,
        created=site.created,
        key=request_key(
            request,
            recipe=recipe,
            settings=settings,
            hosts=cluster.selection.hosts,
            names=(stack.name, backend.name, precision.value),
        ),
        recipe=recipe.name,
        source=recipe.script,
        stack=stack.name,
        fingerprints=fingerprints(everywhere),
        settings=settings,
        script_args=request.script_args,
        resumes=recipe.resumes,
        output_dir=output_dir,
        backend=backend.name,
        precision=precision.value,
        layout=layout,
        decisions=(
            Decision(topic="run", value=site.run_id),
            *tell_stack(stack),
            Decision(
                topic="nodes", value=fold(cluster.selection.hosts), reason=cluster.selection.reason
            ),
            *choices.tell_spares(spares),
            *choices.tell_ranks(layout, request.ppn),
            Decision(topic="launcher", value="mpiexec.hydra", reason=f"{stack.mpi} MPI"),
            Decision(topic="backend", value=backend.name, reason=backend.summary),
            precision,
            tell_preload,
            *choices.tell_network(links),
            *choices.tell_idle(nodes, layout),
            *tell_resume(resume),
        ),
        steps=(
            *files.sent,
            *plan_steps(
                site,
                nodes,
                spares=spares,
                layout=layout,
                links=links,
                backend=backend,
                preload=preload,
                script=script,
                options=supervision(request, recipe, site),
            ),
        ),
    )
    return with_card(plan)


def supervision(request: TrainRequest, recipe: Recipe, site: Site) -> tuple[str, ...]:
    """Options of train/supervise.py. Raises PlanError for numbers that cannot be."""
    if min(request.stall_timeout, request.max_restarts, request.spare_nodes) < 0:
        raise PlanError("--stall-timeout, --max-restarts and --spare-nodes are 0 or more.")
    if request.spare_nodes and not request.max_restarts:
        raise PlanError(
            "--spare-nodes without --max-restarts: a spare node stands in when a run restarts.",
            hint="Add --max-restarts 1 or more.",
        )
    return (
        f"--claims={site.claims}",
        f"--stall-timeout={request.stall_timeout:g}",
        *([f"--max-restarts={request.max_restarts}"] if request.max_restarts else []),
        *(["--elastic"] if recipe.elastic else []),
        *(["--queue"] if request.queue else []),
    )


def fingerprints(nodes: tuple[Node, ...]) -> dict[str, str]:
    """Fingerprint of the packages -> the nodes that have these."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.facts.fingerprint, []).append(node.name)
    return {fingerprint: fold(names) for fingerprint, names in found.items()}


def target(node: Node) -> Target:
    return Target(node=node.name, via=node.via)


def targets(nodes: tuple[Node, ...]) -> tuple[Target, ...]:
    return tuple(map(target, nodes))


def output_of(site: Site, resume: Resume | None) -> str:
    return resume.output_dir if resume else f"{site.run_dir}/output"


def reachable_files(
    recipe: Recipe, settings: Mapping[str, Value], nodes: tuple[Node, ...], site: Site
) -> Files:
    """The script and the data files as the ranks see them.

    What lies in train/ has been provisioned; other files of this machine are sent to the nodes.
    The files of a plug-in recipe stay as they are to each other.
    """
    data = [str(settings[name]) for name in recipe.paths if name in settings]
    paths: dict[str, str] = {}
    sent: list[SendFile] = []
    for path in dict.fromkeys([recipe.script, *recipe.files, *data]):
        inside = PurePosixPath(path).is_relative_to(site.train_here)
        if nodes[0].local:
            paths[path] = path
        elif inside:
            paths[path] = f"{site.train}/{PurePosixPath(path).relative_to(site.train_here)}"
        else:
            paths[path] = f"{site.run_dir}/files/{place_of(path, recipe, len(paths))}"
            sent.append(SendFile(at=targets(nodes), source=path, path=paths[path]))
    return Files(paths=paths, sent=tuple(sent))


def place_of(path: str, recipe: Recipe, number: int) -> str:
    if path in recipe.files:
        return f"recipe/{PurePosixPath(path).relative_to(recipe.folder)}"
    return f"{number}/{PurePosixPath(path).name}"


def map_paths(recipe: Recipe, settings: Mapping[str, Value], files: Files) -> dict[str, Value]:
    return {
        name: files.paths[str(value)] if name in recipe.paths else value
        for name, value in settings.items()
    }


def request_key(
    request: TrainRequest,
    *,
    recipe: Recipe,
    settings: Mapping[str, Value],
    hosts: tuple[str, ...],
    names: tuple[str, ...],
) -> str:
    """Equal for requests that ask for the same training: SHA-256, the first 12 digits."""
    asked = [request.inventory, hosts, request.ppn, request.ipex, request.script_args]
    value = [recipe.script, sorted(settings.items()), asked, names]
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def tell_stack(stack: Stack) -> tuple[Decision, ...]:
    told = Decision(topic="stack", value=stack.name, reason=stack.summary)
    if stack.end_of_life is None:
        return (told,)
    end = stack.end_of_life
    return (told, Decision(topic="warning", value=f"{stack.name} is {end.describe()}",
                           reason=end.reason))  # fmt: skip


def tell_resume(resume: Resume | None) -> tuple[Decision, ...]:
    if resume is None:
        return ()
    why = f"the same request, {resume.state}; --fresh starts over"
    return (Decision(topic="resume", value=f"carries on {resume.run_id}", reason=why),)


def plan_steps(
    site: Site,
    nodes: tuple[Node, ...],
    *,
    spares: tuple[Node, ...],
    layout: Layout,
    links: tuple[Link, ...],
    backend: Backend,
    preload: tuple[str, ...],
    script: tuple[str, ...],
    options: tuple[str, ...],
) -> tuple[Step, ...]:
    """The run's files on every node, then its start on node0."""
    node0 = nodes[0]
    hostfile = f"{site.run_dir}/hostfile"
    launch = LAUNCHERS["mpirun"](
        nodes,
        layout=layout,
        links=links,
        hostfile=hostfile,
        ranks=(node0.python, f"{site.train}/rank.py", "--run", site.run_dir, "--", *script),
    )
    supervise = (node0.python, f"{site.train}/supervise.py", site.run_dir, *options, "--")
    address = links[0].address if links else node0.address
    contents = {
        "env.json": rank_files.env_json(address, backend, preload, site.run_id),
        "layout.json": rank_files.layout_json(layout, backend, nodes, spares, links),
    }
    return (
        PutFile(at=(target(node0),), path=hostfile, content=launch.hostfile),
        *(
            PutFile(at=targets((*nodes, *spares)), path=f"{site.run_dir}/{name}", content=content)
            for name, content in contents.items()
        ),
        StartRun(
            at=target(node0),
            run_dir=site.run_dir,
            command=Command(argv=(*supervise, *launch.command.argv), env=launch.command.env),
        ),
    )
