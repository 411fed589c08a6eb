"""TrainRequest -> Plan: every decision of a training run, with its reason. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.backend import BACKENDS, Backend
from orchestrator.cluster import Cluster, Node
from orchestrator.command import Command
from orchestrator.errors import PlanError, did_you_mean
from orchestrator.launchers import LAUNCHERS
from orchestrator.layout import Layout, Place, lay_out, unused_cores
from orchestrator.plan import Decision, Plan, PutFile, StartRun, Step
from orchestrator.recipe import Recipe, Value, as_arguments
from orchestrator.stack import Stack

TIMEOUT_SECONDS = 1800.0  # torch.distributed's own default for gloo


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What was asked for on the command line; None where the user left it open."""

    recipe: str
    inventory: str = "local"
    nodes: int | None = None
    ppn: int | None = None
    stack: str = "current"
    backend: str | None = None
    precision: str | None = None
    allow_slow_bf16: bool = False
    preset: str | None = None
    settings: Mapping[str, Value]
    script_args: tuple[str, ...] = ()
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An unfinished run of the same request, whose output directory is carried on."""

    run_id: str
    state: str
    output_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where things are: absolute folders on node0. `train` holds rank.py and the recipes."""

    run_id: str
    run_dir: str
    train: str


def plan_train(
    request: TrainRequest,
    *,
    cluster: Cluster,
    recipe: Recipe,
    stack: Stack,
    site: Site,
    resume: Resume | None = None,
) -> Plan:
    """Decide how to run a request. Pure. Raises PlanError, RequestError."""
    nodes = choose_nodes(request, cluster)
    for node in nodes:
        stack.check(node)
    check_stack_fits(recipe, stack)
    backend = BACKENDS[stack.backend(request.backend)]
    precision, why_precision = choose_precision(request, recipe, nodes)
    layout = lay_out(nodes, request.ppn)
    preload, why_preload = choose_preload(stack, nodes)
    arguments = script_arguments(request, recipe, precision)
    key = request_key(
        recipe, (*arguments, *request.script_args), layout, (stack.name, backend.name)
    )
    output_dir = None
    if not recipe.own_script:
        output_dir = resume.output_dir if resume else f"{site.run_dir}/output"
        arguments = (*arguments, f"--output_dir={output_dir}")
    script = (recipe.script, *arguments, *request.script_args)
    return Plan(
        run_id=site.run_id,
        run_dir=site.run_dir,
        key=key,
        recipe=recipe.name,
        resumes=recipe.resumes,
        output_dir=output_dir,
        backend=backend.name,
        precision=precision,
        layout=layout,
        decisions=(
            Decision(topic="run", value=site.run_id),
            Decision(topic="stack", value=stack.name, reason=stack.summary),
            Decision(
                topic="nodes",
                value=", ".join(node.name for node in nodes),
                reason=f"of cluster '{cluster.name}'",
            ),
            Decision(topic="ranks", value=str(layout.world_size), reason=why_ranks(request, nodes)),
            Decision(topic="launcher", value="mpiexec.hydra", reason=f"{stack.mpi} MPI"),
            Decision(topic="backend", value=backend.name, reason=backend.summary),
            Decision(topic="precision", value=precision, reason=why_precision),
            Decision(topic="preload", value=", ".join(preload) or "nothing", reason=why_preload),
            *decide_unused(nodes, layout),
            *decide_resume(resume),
        ),
        steps=plan_steps(
            site=site,
            layout=layout,
            backend=backend,
            nodes=nodes,
            script=script,
            preload=preload,
            key=key,
        ),
    )


def choose_nodes(request: TrainRequest, cluster: Cluster) -> tuple[Node, ...]:
    """Raises PlanError for nodes that are reached over SSH, which this version cannot do yet."""
    nodes = cluster.choose(request.nodes)
    remote = [node.name for node in nodes if not node.local]
    if remote or len(nodes) > 1:
        raise PlanError(
            f"Cluster '{cluster.name}' has nodes that are not this machine: {', '.join(remote)}.",
            hint="This version trains on the machine it runs on: --inventory inventory/local.",
        )
    return nodes


def check_stack_fits(recipe: Recipe, stack: Stack) -> None:
    if recipe.stacks and stack.name not in recipe.stacks:
        raise PlanError(
            f"Recipe '{recipe.name}' does not run on stack '{stack.name}'.",
            hint=did_you_mean(stack.name, recipe.stacks),
        )


def choose_precision(
    request: TrainRequest, recipe: Recipe, nodes: tuple[Node, ...]
) -> tuple[str, str]:
    """(precision, reason). BF16 without instructions for it is refused unless allowed."""
    if recipe.own_script:
        if request.precision:
            raise PlanError(
                f"--precision is for recipes; {recipe.script} decides for itself.",
                hint="Give the script its own flag after --, for example -- --bf16.",
            )
        return "the script's", "an own script decides for itself"
    asked = request.precision or next(iter(recipe.precisions))
    if asked not in recipe.precisions:
        raise PlanError(
            f"Recipe '{recipe.name}' has no precision '{asked}'.",
            hint=did_you_mean(asked, recipe.precisions),
        )
    why = "asked for" if request.precision else "the recipe's default"
    if asked != "bf16":
        return asked, why
    slow = [node.name for node in nodes if node.facts.bf16 is None]
    if not slow:
        found = sorted({node.facts.bf16 or "" for node in nodes})
        where = f"all {len(nodes)} nodes" if len(nodes) > 1 else nodes[0].name
        return asked, f"{why}; {' and '.join(found)} on {where}"
    if request.allow_slow_bf16:
        return asked, f"{why}; SLOW: no avx512_bf16 or amx_bf16 on {', '.join(slow)}"
    raise PlanError(
        f"BF16 is {why}, but {', '.join(slow)} has neither avx512_bf16 nor amx_bf16.",
        hint="Use --precision fp32, or --allow-slow-bf16 to emulate it.",
    )


def choose_preload(stack: Stack, nodes: tuple[Node, ...]) -> tuple[tuple[str, ...], str]:
    """(libraries that every node has, what is missing): absolute paths for LD_PRELOAD."""
    have = [name for name in stack.preload if all(name in n.facts.libraries for n in nodes)]
    missing = [name for name in stack.preload if name not in have]
    paths = tuple(nodes[0].facts.libraries[name] for name in have)
    return paths, f"not installed: {', '.join(missing)}" if missing else ""


def script_arguments(request: TrainRequest, recipe: Recipe, precision: str) -> tuple[str, ...]:
    settings = recipe.settings(request.preset, request.settings)
    return (*as_arguments(settings), *recipe.precisions.get(precision, ()))


def request_key(
    recipe: Recipe, arguments: tuple[str, ...], layout: Layout, names: tuple[str, ...]
) -> str:
    """Equal for requests that train the same on as many ranks: SHA-256, the first 12 digits."""
    value = [recipe.script, arguments, layout.world_size, names]
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def why_ranks(request: TrainRequest, nodes: tuple[Node, ...]) -> str:
    if request.ppn is not None:
        return f"{request.ppn} on each node, as asked"
    return "one for each NUMA node"


def decide_unused(nodes: tuple[Node, ...], layout: Layout) -> tuple[Decision, ...]:
    idle = {node.name: unused_cores(node, layout) for node in nodes}
    return tuple(
        Decision(topic="idle", value=f"{count} cores of {name}", reason="they do not divide evenly")
        for name, count in idle.items()
        if count
    )


def decide_resume(resume: Resume | None) -> tuple[Decision, ...]:
    if resume is None:
        return ()
    return (
        Decision(
            topic="resume",
            value=f"carries on {resume.run_id}",
            reason=f"the same request, {resume.state}; --fresh starts over",
        ),
    )


def plan_steps(
    *,
    site: Site,
    layout: Layout,
    backend: Backend,
    nodes: tuple[Node, ...],
    script: tuple[str, ...],
    preload: tuple[str, ...],
    key: str,
) -> tuple[Step, ...]:
    node0 = nodes[0]
    hostfile = f"{site.run_dir}/hostfile"
    ranks = (node0.python, f"{site.train}/rank.py", "--run", site.run_dir, "--", *script)
    launch = LAUNCHERS["mpirun"](nodes, layout, hostfile, ranks)
    return (
        PutFile(path=hostfile, content=launch.hostfile),
        PutFile(
            path=f"{site.run_dir}/env.json",
            content=as_json(rank_environment(node0, backend, preload, site.run_id)),
        ),
        PutFile(path=f"{site.run_dir}/layout.json", content=as_json(layout_file(layout, backend))),
        StartRun(
            run_dir=site.run_dir,
            command=Command(
                argv=(
                    node0.python,
                    f"{site.train}/supervise.py",
                    site.run_dir,
                    "--",
                    *launch.command.argv,
                ),
                env=launch.command.env,
            ),
        ),
    )


def rank_environment(
    node0: Node, backend: Backend, preload: tuple[str, ...], run_id: str
) -> dict[str, str]:
    """What every rank finds in its environment, besides its own numbers."""
    environment = {
        "MASTER_ADDR": node0.address,
        "MASTER_PORT": str(master_port(run_id)),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",  # its threads would run beside the rank's own
        **dict(backend.env),
    }
    if preload:
        environment["LD_PRELOAD"] = ":".join(preload)
    if any("libiomp5" in path for path in preload):
        # Intel's recommendation for one pinned process per set of cores, as in
        # torch.backends.xeon.run_cpu and IPEX's launcher.
        environment |= {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}
    return environment


def master_port(run_id: str) -> int:
    """A port for the rendezvous: from the run's id, below Linux' ephemeral range (32768)."""
    return 20000 + int(hashlib.sha256(run_id.encode()).hexdigest(), 16) % 12000


def layout_file(layout: Layout, backend: Backend) -> dict[str, object]:
    """RUN_DIR/layout.json, which train/rank.py reads."""
    return {
        "schema": 1,
        "world_size": layout.world_size,
        "backend": backend.name,
        "backend_module": backend.module,
        "timeout_seconds": TIMEOUT_SECONDS,
        "ranks": [rank_entry(place) for place in layout.places],
    }


def rank_entry(place: Place) -> dict[str, object]:
    return {
        "rank": place.rank,
        "node": place.node,
        "local_rank": place.local_rank,
        "local_world_size": place.local_world_size,
        "cpus": list(place.cpus),
        "threads": place.threads,
        "env": {},
    }


def as_json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
