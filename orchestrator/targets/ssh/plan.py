"""Plan a training run: what runs where, and why. Pure."""

from __future__ import annotations

import json
from dataclasses import replace

from orch_node.protocol.cores import default_ranks
from orch_node.protocol.environment import ALWAYS, preload_variables
from orch_node.protocol.files import BINDINGS, CONTAINER, LAYOUT, RECORD
from orch_node.protocol.record import RunNode, RunRecord, render

from orchestrator.errors import PlanError
from orchestrator.model.cluster import LOOPBACK_ADDRESS
from orchestrator.model.decision import Choice, Decision, all_decisions
from orchestrator.model.hosts import fold, grouped
from orchestrator.model.printable import Command
from orchestrator.model.project import Imports
from orchestrator.planning import accelerate_options, fabrics, resolve, run_files, training
from orchestrator.planning.containers import Docker, shared_folders
from orchestrator.planning.launchers import DEFAULT, LAUNCHERS, Launch, LaunchSpec, check_launcher_name, choose_mpi
from orchestrator.planning.measured import valid_for
from orchestrator.planning.plan import CheckImports, Plan, PutFile, RunProgram, StartRun
from orchestrator.planning.request import Resume, RunPaths, TrainRequest
from orchestrator.planning.resolve import Inputs, Resolved, RunNodes

# The options of `docker run` that give access to the GPUs of a vendor.
GPU_DEVICES = {
    "nvidia": ("--gpus=all",),
    "amd": ("--device=/dev/kfd", "--device=/dev/dri"),
    "intel": ("--device=/dev/dri",),
}
NO_BACKEND = "gloo"  # of an image that starts its ranks and chooses their backend; gloo sets no variables
WAITS = Decision(topic="start", value="on the first free nodes, once there are enough", reason="--wait-for-cores")
GIVE_SECONDS = 3600.0  # time limit for node0 of the last attempt to give its files to other nodes


def resolve_hosts(request: TrainRequest, inputs: Inputs, run_paths: RunPaths) -> Resolved:
    """Decide everything that a request leaves open.

    Raises:
        PlanError: if the nodes or the stack cannot do what is requested.
        RequestError: if the request contradicts itself or names something unknown.
    """
    cluster, docker = inputs.cluster, inputs.docker
    spares = cluster.spare_nodes() if cluster.selection.spares else ()
    replacing = Decision(topic="spare nodes", value=fold(node.name for node in spares), reason="to replace lost nodes")
    selected = Decision(topic="nodes", value=fold(cluster.selection.hosts), reason=cluster.selection.reason)
    with_ranks = cluster.selected_nodes()
    nodes = RunNodes(
        count=len(with_ranks),
        ppn=request.ppn or default_ranks(with_ranks[0].facts.cores),
        gpus_by_node={node.name: len(node.facts.gpus) for node in (*with_ranks, *spares)},
        nodes=Choice(with_ranks, (selected,)),
        spares=Choice(spares, (replacing,) if spares else ()),
        with_stack=(*with_ranks, *spares),
        measurement=inputs.measurement and valid_for(inputs.measurement, with_ranks, by_name=True),
    )
    links = resolve.choose_links(nodes.with_stack) if len(nodes.with_stack) > 1 else resolve.NO_LINKS
    launcher = request.launcher or DEFAULT
    if request.launcher or request.mpi:
        check_launcher_name(launcher, LAUNCHERS, "this machine or SSH hosts", request.mpi)
    mpi = choose_mpi(cluster, inputs.stack, request.mpi)
    if docker:
        check_docker(request, launcher, docker)
    contained, starts_ranks = docker is not None, docker is not None and docker.starts_ranks
    fixed = replace(request, ppn=1, backend=NO_BACKEND) if starts_ranks else request
    resolved = resolve.resolve(fixed, inputs, nodes, run_paths, launcher=launcher, mpi=mpi, contained=contained)
    if starts_ranks:
        resolved = without_choices_of_image(resolved, request)
    if len(nodes.with_stack) == 1 and not (request.fabric or cluster.fabric):
        return replace(resolved, links=links)
    use = fabrics.FabricUse(
        nodes=nodes.with_stack, backend=resolved.backend.value, contained=contained, spares=len(spares)
    )
    return replace(resolved, links=fabrics.choose_fabric(links, cluster, request.fabric, use))


def without_choices_of_image(resolved: Resolved, request: TrainRequest) -> Resolved:
    """Return the request without the choices of an image that starts its ranks and chooses their backend itself."""
    default = "one for each GPU" if all(node.facts.gpus for node in resolved.nodes.value) else "one for each NUMA node"
    value = f"{request.ppn} on each node" if request.ppn else default
    ranks = Decision(topic="ranks", value=value, reason="NPROC_PER_NODE, for the image")
    layout, backend = Choice(resolved.layout.value, (ranks,)), Choice(resolved.backend.value)
    return replace(resolved, request=request, layout=layout, backend=backend, preload=Choice(()))


def check_docker(request: TrainRequest, launcher: str, docker: Docker) -> None:
    """Raise PlanError if the settings are invalid, or conflict with an image that starts its ranks."""
    docker.check()
    flags_in_use = {
        f"--launcher {launcher}": launcher != DEFAULT,
        f"--backend {request.backend}": request.backend,
        f"--ccl-workers {request.ccl_workers}": request.ccl_workers,
        "--ipex": request.ipex,
    }
    flags = [flag for flag, is_used in flags_in_use.items() if is_used]
    if docker.starts_ranks and flags:
        raise PlanError.about("starting-image", flag=flags[0], flags=" and ".join(flags), docker=docker)


def with_devices(docker: Docker, resolved: Resolved) -> Docker:
    """Return the settings with access to the GPUs and RDMA devices of the nodes, if the ranks may use GPUs."""
    facts = [node.facts for node in resolved.all_nodes]
    may_use_gpus = resolved.backend.value.gpu or docker.starts_ranks
    if not may_use_gpus or not all(node.gpus for node in facts):
        return docker
    vendors = {gpu.vendor for node in facts for gpu in node.gpus}
    devices = [option for vendor in sorted(vendors) for option in GPU_DEVICES.get(vendor, ())]
    if all(node.devices for node in facts):
        devices.append("--device=/dev/infiniband")
    names = {word.partition("=")[0] for word in docker.arguments}
    missing = [word for word in devices if word not in docker.arguments and not ("--gpus" in names and "gpus" in word)]
    return replace(docker, arguments=(*missing, *docker.arguments))


def plan_train(request: TrainRequest, inputs: Inputs, run_paths: RunPaths) -> Plan:
    """Decide how to run a request.

    Raises:
        PlanError: if the nodes or the stack cannot do what is requested.
        RequestError: if the request contradicts itself or names something unknown.
    """
    resolved = resolve_hosts(request, inputs, run_paths)
    inputs = replace(inputs, docker=inputs.docker and with_devices(inputs.docker, resolved))
    node0, links = resolved.nodes.value[0], resolved.links.value
    run_nodes = tuple(node.run_node for node in resolved.all_nodes)
    files = run_files.sent_files(
        resolved,
        run_nodes,
        python=node0.python,
        is_shared=node0.local and resolved.recipe.project is None,
        has_packages=not all(node.local for node in resolved.all_nodes),
    )
    ranks = training.rank_command(resolved, node0.ranks_python, files.paths)
    address = links[0].address if links else LOOPBACK_ADDRESS  # of rank 0's rendezvous
    spec = training.launch_spec(resolved, ranks=ranks, links=links, address=address, accelerate=inputs.accelerate)
    if inputs.accelerate:
        accelerate_options.check_device(inputs.accelerate, spec)
    launch = LAUNCHERS[resolved.launcher](spec)
    decisions = (
        *decisions_of(inputs, resolved, spec, launch),
        *(training.restart_decisions(resolved) if request.max_restarts else ()),
        *([WAITS] if request.wait_for_cores else []),
        *(file_decisions(run_nodes, run_paths.resume) if run_paths.resume else []),
    )
    fingerprints = grouped((node.facts.fingerprint, node.name) for node in resolved.all_nodes)
    names = {node.node for node in run_nodes}
    earlier = run_paths.resume.nodes if run_paths.resume else ()
    plan = training.new_plan(
        resolved,
        earlier_nodes=tuple(node for node in earlier if node.node not in names),
        decisions=decisions,
        nodes=run_nodes,
        python=node0.python,
    )
    program = (node0.python, f"{run_paths.train}/node.py")
    options = (f"--claims={run_files.claims_folder(run_paths.store)}", *training.supervisor_options(resolved, launch))
    argv = (*program, "supervise", run_paths.run_dir, *options, "--", *launch.command.argv)
    supervise = Command(argv=argv, env=launch.command.env)
    prepare = RunProgram(nodes=run_nodes, command=(*program, "prepare-attempt", run_paths.run_dir))
    steps = (
        *([check_imports(inputs.imports, spec)] if inputs.imports else []),
        *([prepare] if run_paths.resume else []),
        *files.sent,
        *(give_files(plan.run, run_paths.resume) if run_paths.resume else []),
        *put_files(inputs, resolved, plan.run, files=files, spec=spec, launch=launch),
        StartRun(nodes=run_nodes[:1], run_dir=run_paths.run_dir, command=supervise),
    )
    return replace(plan, steps=steps, fingerprints={value: fold(names) for value, names in fingerprints.items()})


def decisions_of(inputs: Inputs, resolved: Resolved, spec: LaunchSpec, launch: Launch) -> tuple[Decision, ...]:
    """Return all decisions, in the order in which they are printed."""
    options, docker = inputs.accelerate, inputs.docker
    has_gpus = any(node.facts.gpus for node in resolved.all_nodes)
    reasons = (launch.summary, resolved.mpi.reason if "MPI" in launch.summary else "")
    return (
        *all_decisions(resolved.stack, resolved.nodes, resolved.spares, resolved.layout),
        *(resolve.gpu_decisions(resolved.all_nodes, resolved.backend.value) if has_gpus else ()),
        Decision(topic="launcher", value=resolved.launcher, reason="; ".join(filter(None, reasons))),
        *([docker.decision()] if docker else []),
        *(accelerate_options.option_decisions(options, spec) if options else ()),
        *(resolve.torch_decisions(resolved.all_nodes) if len(resolved.all_nodes) > 1 and not docker else ()),
        *all_decisions(resolved.backend, resolved.precision, resolved.preload, resolved.links),
        *resolve.idle_core_decisions(resolved.nodes.value, resolved.layout.value),
        *(resolve.python_decisions(resolved.nodes.value[0]) if resolved.request.python else []),
        *(Decision("warning", f"{name} is not known", reason) for name, reason in inputs.cluster.damaged.items()),
    )


def put_files(
    inputs: Inputs, resolved: Resolved, run: RunRecord, *, files: run_files.Files, spec: LaunchSpec, launch: Launch
) -> tuple[PutFile, ...]:
    """Return the steps that write the files in the run's folder.

    Those that grow with the nodes are written on node0, whose supervisor passes them on; the others are the same on
    every node.
    """
    recipe, backend, run_paths = resolved.recipe, resolved.backend.value, resolved.run_paths
    python = resolved.nodes.value[0].user_python
    bindings = [f"{run_paths.run_dir}/{BINDINGS}"] if python and python.bindings else []
    store = "" if all(node.local for node in resolved.all_nodes) else run_paths.store
    folders = (*run_files.module_folders(recipe, run_paths.run_dir, store), *bindings)
    directory = run_files.working_directory(recipe.project, run_paths.run_dir)
    environment = {  # the same for every rank
        "MASTER_ADDR": spec.address,
        "MASTER_PORT": str(spec.port),
        **ALWAYS,
        **preload_variables(resolved.preload.value),
        **backend.env,
        **launch.environment,
        **training.rank_variables(resolved, folders, python),
    }
    contents = {
        **launch.files,
        LAYOUT: run_files.layout_json(spec.layout, backend, spec.nodes, resolved.spares.value, spec.links, directory),
        RECORD: json.dumps(render(run)) + "\n",
    }
    shared = {
        "env.json": json.dumps(environment, indent=1) + "\n",
        **launch.shared,
        **(container_files(inputs.docker, resolved, files) if inputs.docker else {}),
    }
    return tuple(
        PutFile(nodes=nodes, path=f"{run_paths.run_dir}/{name}", content=content)
        for nodes, names in ((run.nodes[:1], contents), (run.nodes, shared))
        for name, content in names.items()
    )


def check_imports(imports: Imports, spec: LaunchSpec) -> CheckImports:
    """Return the step that checks what the script imports on node0."""
    command = (spec.ranks[0], f"{spec.train}/node.py", "find-module", "--missing", *imports.importers)
    return CheckImports(nodes=(spec.nodes[0].run_node,), command=command, imports=imports)


def give_files(run: RunRecord, resume: Resume) -> tuple[RunProgram, ...]:
    """Return the step in which node0 of the last attempt, if it is another node, gives its files to the new nodes."""
    if resume.without_files or resume.attempt == 1 or not resume.project:
        return ()
    earlier_node0 = resume.nodes[0]
    if earlier_node0.node == run.node0.node or not earlier_node0.via:
        return ()
    receivers = [host.node for host in run.nodes if host.node != earlier_node0.node]
    command = (run.python, f"{run.train}/node.py", "share-files", run.run_dir, str(resume.attempt - 1), *receivers)
    hint = f"{earlier_node0.node} has what the run has written. --force continues with what the other nodes have."
    return (RunProgram(nodes=(earlier_node0,), command=command, seconds=GIVE_SECONDS, hint=hint),)


def file_decisions(nodes: tuple[RunNode, ...], resume: Resume) -> tuple[Decision, ...]:
    """Return from which node the files of a resumed run come, if its first node is another one now."""
    if resume.attempt == 1 or not resume.project or resume.nodes[0].node == nodes[0].node:
        return ()
    source = nodes[0].node if resume.without_files else resume.nodes[0].node
    reason = "--force" if resume.forces else f"{resume.nodes[0].node} was lost" if resume.without_files else ""
    return (Decision(topic="files of the run", value=f"as {source} has them", reason=reason),)


def container_files(docker: Docker, resolved: Resolved, files: run_files.Files) -> dict[str, str]:
    """Return container.json."""
    run_paths = resolved.run_paths
    on_gpus = all(node.facts.gpus for node in resolved.all_nodes)
    processes = {
        node.name: resolved.request.ppn or (len(node.facts.gpus) if on_gpus else default_ranks(node.facts.cores))
        for node in resolved.all_nodes
    }
    folders = shared_folders(run_paths, files.paths.get(resolved.recipe.script, ""), files.paths.values())
    preload = resolved.stack.value.preload
    return {CONTAINER: docker.file(folders, run_paths.run_dir, preload=preload, processes=processes)}
