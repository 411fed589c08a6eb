"""Decides the launcher, the MPI implementation and the backend."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.printable import counted
from orchestrator.model.process_group import (
    BACKENDS,
    GPU_HINT,
    PYTORCH_BUILDS,
    TRANSPORT_DESCRIPTIONS,
    TRANSPORTS,
    Backend,
    find_backend,
)
from orchestrator.planning.accelerate_options import ACCELERATE_LAUNCHERS, AccelerateOptions
from orchestrator.planning.launchers import DEFAULT, IMPLEMENTATIONS, LAUNCHERS, WITHOUT_MPI, Job, Launch, transport
from orchestrator.stacks.stack import Stack, same_version


def choose_mpi(cluster: Cluster, stack: Stack, requested: str | None) -> Decision:
    """Return the MPI implementation from the option, the inventory or the stack; the launcher's decision includes it.

    Raises:
        PlanError: if there is no such implementation.
    """
    layers = ((requested, "requested"), (cluster.mpi, f"orch_mpi of {cluster.source}"))
    default = (stack.mpi, f"stack '{stack.name}'")
    value, source = next(((implementation, source) for implementation, source in layers if implementation), default)
    if value not in IMPLEMENTATIONS:
        raise PlanError(f"There is no MPI '{value}' ({source}).", hint=did_you_mean(value, IMPLEMENTATIONS))
    return Decision(topic="mpi", value=value, reason=source)


MPI_LAUNCHERS = {"mpiexec": "mpirun", "mpiexec.hydra": "mpirun", "orterun": "mpirun"}  # aliases of one program


def check_name(name: str, names: Collection[str], target: str) -> None:
    """Check that a launcher is one of those that a target has.

    Raises:
        PlanError: if it is not.
    """
    if name not in names:
        hint = did_you_mean(MPI_LAUNCHERS.get(name, name), names)
        raise PlanError(f"--launcher {name} does not run on {target}.", hint=hint)


def check_mpi(mpi: str | None, launcher: str | None, launchers_without: Collection[str | None], with_mpi: str) -> None:
    """Check that --mpi is not used with a launcher that starts the ranks without mpirun.

    Args:
        mpi: the value of --mpi.
        launcher: the launcher; None for the default, if that is still to be chosen.
        launchers_without: the launchers without mpirun.
        with_mpi: a launcher with it.

    Raises:
        PlanError: if it is.
    """
    if mpi and launcher in launchers_without:
        name = f"--launcher {launcher}" if launcher else "the default launcher"
        raise PlanError(
            f"--mpi {mpi}: {name} starts the ranks without mpirun.",
            hint=f"Use --launcher {with_mpi}, or leave --mpi out.",
        )


def check_launcher(name: str, options: AccelerateOptions | None, mpi: str | None) -> None:
    """Check that the launcher exists and supports the other options.

    Raises:
        PlanError: if it does not exist, does not start accelerate although a configuration is given, or starts no MPI
            although --mpi is given.
    """
    check_name(name, LAUNCHERS, "this machine or SSH hosts")
    if options and name not in ACCELERATE_LAUNCHERS:
        raise PlanError(
            f"--accelerate-config {options.source}: --launcher {name} does not start accelerate.",
            hint=f"Add --launcher {' or '.join(ACCELERATE_LAUNCHERS)}.",
        )
    if mpi:
        check_mpi(mpi, name, WITHOUT_MPI, DEFAULT)


def choose_backend(
    stack: Stack, nodes: tuple[Node, ...], requested: str | None, plugins: Mapping[str, Backend]
) -> Backend:
    """Return the requested backend, or the stack's default.

    Raises:
        PlanError: if it does not exist, or a node lacks a requirement.
    """
    name = requested or stack.backends[0]
    backends = {**BACKENDS, **plugins, **{plugin.name: plugin for plugin in stack.plugins}}
    backend = ccl_backend(stack, nodes) if name == "ccl" else find_backend(name, backends)
    if backend is None:
        raise PlanError(
            f"--backend {name}: stack '{stack.name}' has {' and '.join(stack.backends)}.",
            hint=f"{did_you_mean(name, backends)} Packages add backends by the entry point orch.backends.",
        )
    check_backend(backend, nodes)
    return replace(backend, env=(*stack.environment.items(), *backend.env))


def ccl_backend(stack: Stack, nodes: tuple[Node, ...]) -> Backend:
    """Return the ccl backend of the stack; raise PlanError if the stack has no bindings."""
    if stack.bindings is None or "ccl" not in stack.backends:
        hint = "`orch stacks` shows which stacks have bindings for ccl."
        raise PlanError(
            f"--backend ccl: stack '{stack.name}' has {' and '.join(stack.backends)}.",
            hint=f"{hint} {GPU_HINT}" if any(node.facts.gpus for node in nodes) else hint,
        )
    bindings = stack.bindings
    # Only Intel's wheels need their script; the bindings that orch builds find their libraries themselves.
    setvars = f"{bindings.module}/{bindings.setvars}" if bindings.built_by == "Intel" else ""
    summary = f"oneCCL, {bindings.module} {bindings.version}"
    return replace(BACKENDS["ccl"], summary=summary, module=bindings.module, setvars=setvars)


def check_backend(backend: Backend, nodes: tuple[Node, ...]) -> None:
    """Raise PlanError if nodes lack a requirement of the backend."""
    problems = [problem for node in nodes for problem in missing_requirements(backend, node)]
    if problems:
        source = f" (the plug-in is registered by {backend.source})" if backend.source else ""
        hint = backend.hint or f"Add it to the requirements of the stack{source}."
        raise PlanError(
            f"--backend {backend.name} ({backend.summary}): {'; '.join(problems[:3])}.",
            hint=GPU_HINT if backend.gpu and all(node.facts.gpus for node in nodes) else hint,
        )


def missing_requirements(backend: Backend, node: Node) -> list[str]:
    """Return what the node lacks for the backend."""
    packages = node.facts.packages
    missing = []
    for name, version in backend.requirements.items():
        if name not in packages:
            missing.append(f"{node.name} has no {name}")
        elif version and not same_version(packages[name], version):
            missing.append(f"{node.name} has {name} {packages[name]}, not {version}")
    _, _, build = packages.get("torch", "").partition("+")
    if backend.gpu and not node.facts.gpus:
        missing.append(f"{node.name} has no GPU")
    elif backend.gpu and build == "cpu":
        missing.append(f"torch {packages['torch']} of {node.name} is built for CPUs")
    if backend.built_into_torch and build.startswith(PYTORCH_BUILDS):
        missing.append(f"torch {packages['torch']} of {node.name} was built without {backend.name}")
    return missing


def check_gpus(backend: Backend, ppn: int | None, gpus: Mapping[str, int], env: Collection[str]) -> None:
    """Check that each rank of a backend for GPUs has one.

    Args:
        backend: the backend for GPUs.
        ppn: ranks per node; None for one on each GPU.
        gpus: the number of GPUs of each node.
        env: variables of the ranks. NCCL_HOSTID among them lets ranks share a GPU, for experiments.

    Raises:
        PlanError: for the first node with fewer GPUs than ranks.
    """
    shares_gpus = any(variable.startswith("NCCL_HOSTID=") for variable in env)
    for node, count in gpus.items():
        if ppn and ppn > count and not shares_gpus:
            raise PlanError(
                f"--ppn {ppn}, but {node} has {counted(count, 'GPU')}, and each rank of --backend {backend.name} "
                "needs one.",
                hint=f"Use --ppn {count}, or --ppn auto for one rank on each GPU.",
            )


def adapt_backend(backend: Backend, launcher: str, mpi: str, *, contained: bool = False) -> Backend:
    """Return the backend with the variables that the launcher requires.

    Raises:
        PlanError: if it needs the launcher's socket, and the ranks start in containers.
    """
    if contained and backend.name == "mpi":
        raise PlanError(
            "--backend mpi: the launcher's socket (PMI) does not reach into a container.",
            hint="Use --backend ccl, which uses libfabric in containers, or gloo; or run without containers.",
        )
    if backend.name != "ccl":
        return backend
    name = transport(launcher, mpi, contained=contained)
    summary = f"{backend.summary}, {TRANSPORT_DESCRIPTIONS[name]}"
    return replace(backend, summary=summary, env=(*TRANSPORTS[name], *backend.env))


def choose_launch(name: str, job: Job, mpi: Decision) -> Choice[Launch]:
    """Return what starts the ranks; raise PlanError if the nodes lack it."""
    launch = LAUNCHERS[name](job)
    reason = launch.summary
    if mpi.reason and "MPI" in launch.summary:
        reason = f"{reason}; {mpi.reason}"
    return Choice(launch, (Decision(topic="launcher", value=name, reason=reason),))
