"""Plan a training run: what runs where, and why. Pure."""

from __future__ import annotations

from orch_node.protocol.environment import defaults
from orch_node.protocol.files import BINDINGS

from orchestrator.launchers import Job, Launch
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice, Decision, all_decisions
from orchestrator.model.hostlist import fold
from orchestrator.model.links import master_address
from orchestrator.planning import accelerate_options
from orchestrator.planning.containers import Docker
from orchestrator.planning.hosts import explain_damaged, explain_idle_cores, explain_python, explain_torch
from orchestrator.planning.launch import choose_launch
from orchestrator.planning.plan import CheckImports, Plan, Step
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.resolve import Resolved
from orchestrator.planning.run_files import master_port
from orchestrator.planning.sent_files import Files, module_folders, project_copy, stored_packages
from orchestrator.planning.supervision import launcher_restarts, supervisor_options
from orchestrator.planning.training import (
    Home,
    choose_output,
    explain_environment,
    explain_packages,
    explain_restarts,
    origin_of,
    request_key,
    run_record,
    script_command,
    user_variables,
)
from orchestrator.runs.record import with_record
from orchestrator.targets.ssh import container_steps
from orchestrator.targets.ssh.decisions import HostInputs, ResolvedHosts, resolve_hosts
from orchestrator.targets.ssh.steps import Extras, Site, plan_steps, reachable_files, run_node, run_nodes


def plan_train(request: TrainRequest, inputs: HostInputs, site: Site, resume: Resume | None = None) -> Plan:
    """Decide how to run a request.

    Raises:
        PlanError: if the nodes or the stack cannot do what is requested.
        RequestError: if the request contradicts itself or names something unknown.
    """
    hosts = resolve_hosts(request, inputs, resume)
    resolved = hosts.resolved
    training = resolved.training
    files = reachable_files(training.recipe, training.settings, resolved.all_nodes, site)
    output = choose_output(training.recipe, site.run_dir, resume)
    script = script_command(request, training, files.paths, output.value)
    job = job_of(request, inputs, hosts, site, script)
    launch = choose_launch(resolved.launcher, job, resolved.mpi)
    key = key_of(request, inputs, resolved)
    home = home_of(resolved, site, output.value)
    decisions = (
        Decision(topic="run", value=site.run_id),
        *decisions_of(inputs, hosts, job, launch),
        *explain_restarts(request.max_restarts, training.recipe, request.min_nodes),
        *output.decisions,
        *explain_environment(request),
        *([training.recipe.project.explain()] if training.recipe.project else []),
        *explain_packages(training.recipe),
    )
    plan = Plan(
        run=run_record(training, site, home, key=key, decisions=decisions),
        origin=origin_of(request, training, fingerprints(resolved.all_nodes)),
        steps=(
            *check_imports(inputs, job),
            *steps_of(request, inputs, resolved, site, files=files, job=job, launch=launch.value),
        ),
    )
    return with_record(plan)


def job_of(request: TrainRequest, inputs: HostInputs, hosts: ResolvedHosts, site: Site, script: tuple[str, ...]) -> Job:
    """Return the job that the launcher has to start."""
    resolved, links = hosts.resolved, hosts.links.value
    node0 = resolved.nodes.value[0]
    options = inputs.accelerate
    return Job(
        nodes=resolved.nodes.value,
        layout=resolved.layout.value,
        links=links,
        run_dir=site.run_dir,
        train=site.train,
        ranks=(node0.ranks_python, f"{site.train}/node.py", "rank", "--run", site.run_dir, "--", *script),
        address=master_address(links),
        port=(options.port if options else None) or master_port(site.run_id),
        mpi=resolved.mpi.value,
        precision=resolved.precision.value,
        ipex=request.ipex,
        accelerate=options.values if options else {},
        restarts=launcher_restarts(request, resolved.launcher),
        min_nodes=request.min_nodes,
    )


def decisions_of(inputs: HostInputs, hosts: ResolvedHosts, job: Job, launch: Choice[Launch]) -> tuple[Decision, ...]:
    """Return all decisions, in the order in which they are printed."""
    resolved, options, docker = hosts.resolved, inputs.accelerate, inputs.docker
    return (
        *all_decisions(resolved.stack, resolved.nodes, resolved.spares, resolved.layout),
        *launch.decisions,
        *([docker.explain()] if docker else []),
        *(accelerate_options.explain_options(options, job) if options else ()),
        *(() if docker else explain_torch(resolved.all_nodes)),
        *all_decisions(resolved.backend, resolved.precision, resolved.preload, hosts.links),
        *explain_idle_cores(resolved.nodes.value, resolved.layout.value),
        *explain_python(resolved.nodes.value[0]),
        *explain_damaged(inputs.cluster),
    )


def steps_of(
    request: TrainRequest, inputs: HostInputs, resolved: Resolved, site: Site, *, files: Files, job: Job, launch: Launch
) -> tuple[Step, ...]:
    """Return the steps that send the files and start the run."""
    recipe = resolved.training.recipe
    packages = stored_packages(recipe, site)
    if recipe.packages and all(node.local for node in resolved.all_nodes):
        packages = recipe.packages.folder
    python = resolved.nodes.value[0].user_python
    bindings = [f"{site.run_dir}/{BINDINGS}"] if python and python.bindings else []
    extras = Extras(
        spares=resolved.spares.value,
        backend=resolved.backend.value,
        preload=resolved.preload.value,
        environment={
            **defaults(recipe.environment),
            **user_variables(request, (*module_folders(recipe, site.run_dir, packages), *bindings), python),
        },
        container=container_file(request, inputs.docker, resolved, site, files),
        working_directory=recipe.project.working_directory(project_copy(site.run_dir)) if recipe.project else "",
        options=(
            f"--claims={site.claims}",
            *supervisor_options(request, recipe, resolved.launcher, launch),
            *(["--queue"] if request.queue else []),
        ),
    )
    return (*files.sent, *plan_steps(site, job, launch, extras))


def check_imports(inputs: HostInputs, job: Job) -> tuple[CheckImports, ...]:
    """Return the step that checks what the script imports on node0, if it needs a check."""
    imports = inputs.loaded.imports
    if imports is None:
        return ()
    command = (job.ranks[0], f"{job.train}/node.py", "find-module", "--missing", *imports.importers)
    return (CheckImports(node=run_node(job.nodes[0]), command=command, imports=imports),)


def container_file(
    request: TrainRequest, docker: Docker | None, resolved: Resolved, site: Site, files: Files
) -> str | None:
    """Return the content of container.json, or None if the ranks run without containers."""
    if docker is None:
        return None
    return docker.file(
        container_steps.mounted_folders(files, resolved.training.recipe, site),
        site.run_dir,
        preload=resolved.training.stack.preload,
        processes=container_steps.ranks_per_node(resolved.all_nodes, request.ppn),
    )


def home_of(resolved: Resolved, site: Site, output_dir: str | None) -> Home:
    """Return the nodes and folders of the run, for its record."""
    return Home(
        nodes=run_nodes(resolved.all_nodes),
        run_dir=site.run_dir,
        train=site.train,
        python=resolved.nodes.value[0].python,
        output_dir=output_dir,
    )


def fingerprints(nodes: tuple[Node, ...]) -> dict[str, str]:
    """Return the nodes, folded into one string, by the fingerprint of their packages."""
    nodes_by_fingerprint: dict[str, list[str]] = {}
    for node in nodes:
        nodes_by_fingerprint.setdefault(node.facts.fingerprint, []).append(node.name)
    return {fingerprint: fold(names) for fingerprint, names in nodes_by_fingerprint.items()}


def key_of(request: TrainRequest, inputs: HostInputs, resolved: Resolved) -> str:
    """Return a key that is equal for requests of the same training."""
    docker = inputs.docker
    names = (docker.image, docker.start) if docker else ()
    return request_key(request, resolved.training, hosts=inputs.cluster.selection.hosts, names=names)
