"""Plan a training run: what runs where, and why. Pure."""

from __future__ import annotations

from dataclasses import replace

from orch_node.protocol.files import BINDINGS
from orch_node.protocol.record import RunNode

from orchestrator.launchers import Job, Launch
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice, Decision, all_decisions
from orchestrator.model.hostlist import fold
from orchestrator.model.links import master_address
from orchestrator.planning import accelerate_options
from orchestrator.planning.containers import Docker
from orchestrator.planning.hosts import explain_damaged, explain_gpus, explain_idle_cores, explain_python, explain_torch
from orchestrator.planning.launch import choose_launch
from orchestrator.planning.plan import CheckImports, Plan, PrepareAttempt, Step
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.resolve import Resolved
from orchestrator.planning.sent_files import Files, claims_folder, module_folders, stored_packages, working_directory
from orchestrator.planning.site import Site
from orchestrator.planning.supervision import supervisor_options
from orchestrator.planning.training import (
    Home,
    explain_restarts,
    launcher_job,
    new_plan,
    output_of,
    rank_command,
    rank_variables,
    script_command,
)
from orchestrator.runs.record import with_record
from orchestrator.targets.ssh import container_steps
from orchestrator.targets.ssh.decisions import HostInputs, ResolvedHosts, resolve_hosts
from orchestrator.targets.ssh.steps import Extras, plan_steps, reachable_files, run_node, run_nodes

GIVE_SECONDS = 3600.0  # time limit for node0 of the last attempt to give its files to other nodes


def plan_train(request: TrainRequest, inputs: HostInputs, site: Site) -> Plan:
    """Decide how to run a request.

    Raises:
        PlanError: if the nodes or the stack cannot do what is requested.
        RequestError: if the request contradicts itself or names something unknown.
    """
    hosts = resolve_hosts(request, inputs, site.resume)
    resolved = hosts.resolved
    inputs = replace(inputs, docker=container_steps.with_devices(inputs.docker, resolved))
    recipe, node0, links = resolved.recipe, resolved.nodes.value[0], hosts.links.value
    files = reachable_files(recipe, resolved.settings, resolved.all_nodes, site)
    output = output_of(recipe, site.run_dir)
    script = script_command(request, resolved, files.paths, output)
    job = launcher_job(
        request,
        resolved,
        site,
        ranks=rank_command(node0.ranks_python, site, script),
        links=links,
        address=master_address(links),
        accelerate=inputs.accelerate,
    )
    if inputs.accelerate:
        accelerate_options.check_device(inputs.accelerate, job)
    launch = choose_launch(resolved.launcher, job, resolved.mpi)
    decisions = (
        *decisions_of(inputs, hosts, job, launch),
        *explain_restarts(request.max_restarts, recipe, request.min_nodes),
        *explain_wait(request),
        *explain_files(run_nodes(resolved.all_nodes), site),
    )
    plan = new_plan(request, resolved, site, home_of(resolved), decisions=decisions, output=output)
    record = replace(plan.run, earlier_nodes=earlier_nodes(plan.run.nodes, site))
    steps = (
        *check_imports(inputs, job),
        *prepare_attempt(site, resolved),
        *steps_of(request, inputs, resolved, site, files=files, job=job, launch=launch.value),
    )
    return with_record(replace(plan, run=record, steps=steps))


def earlier_nodes(nodes: tuple[RunNode, ...], site: Site) -> tuple[RunNode, ...]:
    """Return the nodes that only earlier attempts of a resumed run had."""
    names = {host.node for host in nodes}
    return tuple(host for host in site.resume.nodes if host.node not in names) if site.resume else ()


def explain_wait(request: TrainRequest) -> tuple[Decision, ...]:
    """Return the decision that the nodes are chosen when the run starts, if it waits for free ones."""
    if not request.wait_for_cores:
        return ()
    return (Decision(topic="start", value="on the first free nodes, once there are enough", reason="--wait-for-cores"),)


def decisions_of(inputs: HostInputs, hosts: ResolvedHosts, job: Job, launch: Choice[Launch]) -> tuple[Decision, ...]:
    """Return all decisions, in the order in which they are printed."""
    resolved, options, docker = hosts.resolved, inputs.accelerate, inputs.docker
    return (
        *all_decisions(resolved.stack, resolved.nodes, resolved.spares, resolved.layout),
        *explain_gpus(resolved.all_nodes, resolved.backend.value),
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
    recipe = resolved.recipe
    packages = stored_packages(recipe, site)
    if recipe.packages and all(node.local for node in resolved.all_nodes):
        packages = recipe.packages.folder
    python = resolved.nodes.value[0].user_python
    bindings = [f"{site.run_dir}/{BINDINGS}"] if python and python.bindings else []
    extras = Extras(
        spares=resolved.spares.value,
        backend=resolved.backend.value,
        preload=resolved.preload.value,
        environment=rank_variables(
            request, recipe, (*module_folders(recipe, site.run_dir, packages), *bindings), python
        ),
        container=container_file(request, inputs.docker, resolved, site, files),
        working_directory=working_directory(recipe, site.run_dir),
        options=(
            f"--claims={claims_folder(site.store)}",
            *supervisor_options(request, recipe, resolved.launcher, launch, attempt=site.attempt),
        ),
    )
    sharing = give_files(run_nodes(resolved.all_nodes), site, resolved.nodes.value[0].python)
    return (*files.sent, *sharing, *plan_steps(site, job, launch, extras))


def check_imports(inputs: HostInputs, job: Job) -> tuple[CheckImports, ...]:
    """Return the step that checks what the script imports on node0, if it needs a check."""
    imports = inputs.loaded.imports
    if imports is None:
        return ()
    command = (job.ranks[0], f"{job.train}/node.py", "find-module", "--missing", *imports.importers)
    return (CheckImports(node=run_node(job.nodes[0]), command=command, imports=imports),)


def prepare_attempt(site: Site, resolved: Resolved) -> tuple[PrepareAttempt, ...]:
    """Return the step before the next attempt of a resumed run."""
    if site.resume is None:
        return ()
    command = (resolved.nodes.value[0].python, f"{site.train}/node.py", "prepare-attempt", site.run_dir)
    return (PrepareAttempt(nodes=run_nodes(resolved.all_nodes), command=command),)


def give_files(nodes: tuple[RunNode, ...], site: Site, python: str) -> tuple[PrepareAttempt, ...]:
    """Return the step in which node0 of the last attempt, if it is another node, gives its files to the new nodes."""
    resume = site.resume
    if resume is None or resume.without_files or resume.attempt == 1 or not resume.project:
        return ()
    earlier_node0 = resume.nodes[0]
    if earlier_node0.node == nodes[0].node or not earlier_node0.via:
        return ()
    receivers = [host.node for host in nodes if host.node != earlier_node0.node]
    command = (python, f"{site.train}/node.py", "share-files", site.run_dir, str(resume.attempt - 1), *receivers)
    hint = f"{earlier_node0.node} has what the run has written. --force continues with what the other nodes have."
    return (PrepareAttempt(nodes=(earlier_node0,), command=command, seconds=GIVE_SECONDS, hint=hint),)


def explain_files(nodes: tuple[RunNode, ...], site: Site) -> tuple[Decision, ...]:
    """Return from which node the files of a resumed run come, if its first node is another one now."""
    resume = site.resume
    if resume is None or resume.attempt == 1 or not resume.project or resume.nodes[0].node == nodes[0].node:
        return ()
    source = nodes[0].node if resume.without_files else resume.nodes[0].node
    reason = "--force" if resume.forces else f"{resume.nodes[0].node} was lost" if resume.without_files else ""
    return (Decision(topic="files of the run", value=f"as {source} has them", reason=reason),)


def container_file(
    request: TrainRequest, docker: Docker | None, resolved: Resolved, site: Site, files: Files
) -> str | None:
    """Return the content of container.json, or None if the ranks run without containers."""
    if docker is None:
        return None
    return docker.file(
        container_steps.mounted_folders(files, resolved.recipe, site),
        site.run_dir,
        preload=resolved.stack.value.preload,
        processes=container_steps.ranks_per_node(resolved.all_nodes, request.ppn),
    )


def home_of(resolved: Resolved) -> Home:
    """Return the nodes of the run and their software."""
    return Home(
        nodes=run_nodes(resolved.all_nodes),
        python=resolved.nodes.value[0].python,
        fingerprints=fingerprints(resolved.all_nodes),
    )


def fingerprints(nodes: tuple[Node, ...]) -> dict[str, str]:
    """Return the nodes, folded into one string, by the fingerprint of their packages."""
    nodes_by_fingerprint: dict[str, list[str]] = {}
    for node in nodes:
        nodes_by_fingerprint.setdefault(node.facts.fingerprint, []).append(node.name)
    return {fingerprint: fold(names) for fingerprint, names in nodes_by_fingerprint.items()}
