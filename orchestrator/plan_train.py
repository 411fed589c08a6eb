"""TrainRequest -> Plan: what will run where, and why. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from orchestrator import accelerate_file, choices, choose_launch, plan_docker
from orchestrator.backend import Backend
from orchestrator.card import with_card
from orchestrator.choose_run import Chosen, choose
from orchestrator.cluster import Cluster, Node
from orchestrator.launchers import LAUNCHERS, RESTARTING, Job, Launch
from orchestrator.names import fold
from orchestrator.plan import Decision, Plan, Step
from orchestrator.plan_steps import (
    Files,
    Site,
    map_paths,
    plan_steps,
    reachable_files,
    supervision,
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
    chosen = choose(request, cluster=cluster, recipe=recipe, stack=stack, plugins=plugins or {})
    files = reachable_files(recipe, chosen.settings, chosen.everywhere, site)
    output_dir = None if recipe.own_script else output_of(site, resume)
    job = job_of(request, chosen, site, script_of(request, recipe, chosen, files, output_dir))
    launch = LAUNCHERS[request.launcher](job)
    plan = Plan(
        run_id=site.run_id,
        node0=target(chosen.nodes[0]),
        nodes=targets(chosen.everywhere),
        run_dir=site.run_dir,
        train=site.train,
        python=chosen.nodes[0].python,
        started_by=site.started_by,
        created=site.created,
        key=request_key(
            request, recipe=recipe, settings=chosen.settings, hosts=cluster.selection.hosts,
            names=chosen.names,
        ),
        recipe=recipe.name,
        source=recipe.script,
        stack=chosen.stack.name,
        fingerprints=fingerprints(chosen.everywhere),
        settings=chosen.settings,
        script_args=request.script_args,
        resumes=recipe.resumes,
        output_dir=output_dir,
        backend=chosen.backend.name,
        precision=chosen.precision.value,
        layout=chosen.layout,
        decisions=(
            Decision(topic="run", value=site.run_id),
            *tell_stack(chosen.stack),
            Decision(
                topic="nodes", value=fold(cluster.selection.hosts), reason=cluster.selection.reason
            ),
            *tell(request, chosen, job, launch),
            *tell_resume(resume),
        ),
        steps=steps_of(request, recipe, site, chosen=chosen, files=files, job=job, launch=launch),
    )  # fmt: skip
    return with_card(plan)


def script_of(
    request: TrainRequest, recipe: Recipe, chosen: Chosen, files: Files, output_dir: str | None
) -> tuple[str, ...]:
    """The training script and its arguments, as the ranks see them."""
    return (
        files.paths[recipe.script],
        *as_arguments(map_paths(recipe, chosen.settings, files)),
        *recipe.precisions.get(chosen.precision.value, ()),
        *(["--use_ipex"] if request.ipex else []),
        *([f"--output_dir={output_dir}"] if output_dir else []),
        *request.script_args,
    )


def job_of(request: TrainRequest, chosen: Chosen, site: Site, script: tuple[str, ...]) -> Job:
    node0, wishes = chosen.nodes[0], request.wishes
    return Job(
        nodes=chosen.nodes,
        layout=chosen.layout,
        links=chosen.links,
        run_dir=site.run_dir,
        train=site.train,
        ranks=(node0.python, f"{site.train}/rank.py", "--run", site.run_dir, "--", *script),
        address=chosen.links[0].address if chosen.links else node0.address,
        port=(wishes.port if wishes else None) or master_port(site.run_id),
        mpi=chosen.mpi.value,
        precision=chosen.precision.value,
        ipex=request.ipex,
        accelerate=wishes.values if wishes else {},
        restarts=request.max_restarts if request.launcher in RESTARTING else 0,
        min_nodes=request.min_nodes,
    )


def tell(request: TrainRequest, chosen: Chosen, job: Job, launch: Launch) -> tuple[Decision, ...]:
    """What was decided. Of an image that starts its ranks itself not what it decides."""
    own_start, docker = chosen.own_start, request.docker
    return (
        *choices.tell_spares(chosen.spares),
        *(
            plan_docker.tell_own_ranks(request)
            if own_start
            else choices.tell_ranks(chosen.layout, request.ppn)
        ),
        choose_launch.tell_launcher(request.launcher, launch, chosen.mpi),
        *([docker.tell()] if docker else ()),
        *(accelerate_file.tell(request.wishes, job) if request.wishes else ()),
        *([] if own_start else [choose_launch.tell_backend(chosen.backend)]),
        chosen.precision,
        *([] if own_start else [chosen.tell_preload]),
        *choices.tell_network(chosen.links),
        *choices.tell_idle(chosen.nodes, chosen.layout),
    )


def steps_of(
    request: TrainRequest,
    recipe: Recipe,
    site: Site,
    *,
    chosen: Chosen,
    files: Files,
    job: Job,
    launch: Launch,
) -> tuple[Step, ...]:
    container = plan_docker.file(
        request, files, recipe, site, nodes=chosen.everywhere, preload=chosen.stack.preload
    )
    started = plan_steps(
        site,
        job,
        launch,
        spares=chosen.spares,
        backend=chosen.backend,
        preload=chosen.preload,
        docker=container,
        options=supervision(request, recipe, site, launch),
    )
    return (*files.sent, *started)


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
