"""TrainRequest -> Plan: what will run where, and why. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from orchestrator import accelerate_file, choices, choose_launch, network, plan_docker
from orchestrator.backend import Backend
from orchestrator.card import with_card
from orchestrator.cluster import Cluster, Node
from orchestrator.errors import PlanError
from orchestrator.launchers import LAUNCHERS, RESTARTING, Job, Launch
from orchestrator.layout import lay_out
from orchestrator.names import fold
from orchestrator.plan import Decision, Plan
from orchestrator.plan_steps import (
    Site,
    map_paths,
    plan_steps,
    reachable_files,
    target,
    targets,
)
from orchestrator.rank_files import master_port
from orchestrator.recipe import Recipe, Value, as_arguments
from orchestrator.stack import Stack
from orchestrator.train_request import Resume, TrainRequest


def plan_train(
    request: TrainRequest,
    *,
    cluster: Cluster,
    recipe: Recipe,
    stack: Stack,
    site: Site,
    resume: Resume | None = None,
    plugins: Mapping[str, Backend] | None = None,
) -> Plan:
    """Decide how to run a request. Raises PlanError, RequestError."""
    nodes, spares = cluster.chosen(), cluster.spares()
    wishes = request.wishes
    everywhere = (*nodes, *spares)
    links = network.links(everywhere)
    choices.check_recipe_fits(recipe, stack)
    choose_launch.check_launcher(request.launcher, wishes)
    mpi = choose_launch.choose_mpi(cluster, stack, request.mpi)
    docker = request.docker
    own_start = plan_docker.check(request)
    asked = plan_docker.NO_BACKEND if own_start else request.backend
    chosen = choose_launch.choose_backend(stack, everywhere, asked, plugins or {})
    stack = stack.for_backend(chosen.name)
    for node in everywhere:
        stack.check(node)
    backend = choose_launch.below(chosen, request.launcher, mpi.value, contained=docker is not None)
    precision = choices.choose_precision(
        recipe,
        everywhere,
        asked=request.precision,
        allow_slow=request.allow_slow_bf16,
        launched=request.launcher in accelerate_file.WITH,
    )
    ppn = 1 if own_start else request.ppn
    layout = lay_out(nodes, ppn, choices.choose_workers(backend, request.ccl_workers))
    if request.ipex:
        choices.check_ipex(recipe, stack, precision=precision.value, ranks=layout.world_size)
    preload, tell_preload = (
        choices.leave_preload(stack) if docker else choices.choose_preload(stack, everywhere)
    )
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
    job = Job(
        nodes=nodes,
        layout=layout,
        links=links,
        run_dir=site.run_dir,
        train=site.train,
        ranks=(nodes[0].python, f"{site.train}/rank.py", "--run", site.run_dir, "--", *script),
        address=links[0].address if links else nodes[0].address,
        port=(wishes.port if wishes else None) or master_port(site.run_id),
        mpi=mpi.value,
        precision=precision.value,
        ipex=request.ipex,
        accelerate=wishes.values if wishes else {},
        restarts=request.max_restarts if request.launcher in RESTARTING else 0,
        min_nodes=request.min_nodes,
    )
    launch = LAUNCHERS[request.launcher](job)
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
            names=(
                *(stack.name, backend.name, precision.value),
                *([docker.image, docker.start] if docker else ()),
            ),
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
            *(
                plan_docker.tell_own_ranks(request)
                if own_start
                else choices.tell_ranks(layout, ppn)
            ),
            choose_launch.tell_launcher(request.launcher, launch, mpi),
            *([docker.tell()] if docker else ()),
            *(accelerate_file.tell(wishes, job) if wishes else ()),
            *([] if own_start else [choose_launch.tell_backend(backend)]),
            precision,
            *([] if own_start else [tell_preload]),
            *choices.tell_network(links),
            *choices.tell_idle(nodes, layout),
            *tell_resume(resume),
        ),
        steps=(
            *files.sent,
            *plan_steps(
                site,
                job,
                launch,
                spares=spares,
                backend=backend,
                preload=preload,
                docker=plan_docker.file(
                    request, files, recipe, site, nodes=everywhere, preload=stack.preload
                ),
                options=supervision(request, recipe, site, launch),
            ),
        ),
    )
    return with_card(plan)


def supervision(
    request: TrainRequest, recipe: Recipe, site: Site, launch: Launch
) -> tuple[str, ...]:
    """Options of train/supervise.py. Raises PlanError for numbers that cannot be."""
    restarts = request.max_restarts
    if min(request.stall_timeout, restarts, request.spare_nodes, request.min_nodes) < 0:
        raise PlanError(
            "--stall-timeout, --max-restarts, --spare-nodes and --min-nodes are 0 or more."
        )
    if request.min_nodes and not restarts:
        raise PlanError(
            "--min-nodes without --max-restarts: nodes are left out when a run restarts.",
            hint="Add --max-restarts 1 or more.",
        )
    if request.spare_nodes and not restarts:
        raise PlanError(
            "--spare-nodes without --max-restarts: a spare node stands in when a run restarts.",
            hint="Add --max-restarts 1 or more.",
        )
    return (
        f"--claims={site.claims}",
        f"--stall-timeout={request.stall_timeout:g}",
        *([f"--max-restarts={request.max_restarts}"] if request.max_restarts else []),
        *(["--launcher-restarts"] if restarts and request.launcher in RESTARTING else []),
        *(["--elastic", *numbers(launch)] if recipe.elastic or request.min_nodes else []),
        *([f"--min-nodes={request.min_nodes}"] if request.min_nodes else []),
        *([f"--path={launch.path}"] if launch.path else []),
        *(["--queue"] if request.queue else []),
    )


def numbers(launch: Launch) -> tuple[str, ...]:
    """Where the launcher's command names how many ranks and nodes there are."""
    found = (("size", launch.size_at), ("nodes", launch.nodes_at))
    return tuple(f"--{name}-at={at}" for name, at in found if at is not None)


def fingerprints(nodes: tuple[Node, ...]) -> dict[str, str]:
    """Fingerprint of the packages -> the nodes that have these."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.facts.fingerprint, []).append(node.name)
    return {fingerprint: fold(names) for fingerprint, names in found.items()}


def output_of(site: Site, resume: Resume | None) -> str:
    return resume.output_dir if resume else f"{site.run_dir}/output"


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
