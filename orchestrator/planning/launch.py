"""What starts the ranks, over which MPI, and what they talk through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.launchers import DIALECTS, LAUNCHERS, WITHOUT_MPI, Job, Launch, transport
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.process_group import BACKENDS, PYTORCH_BUILDS, TRANSPORT_DESCRIPTIONS, TRANSPORTS, Backend
from orchestrator.planning.accelerate_options import WITH, AccelerateOptions
from orchestrator.stacks.stack import Bindings, Stack, same_version


def choose_mpi(cluster: Cluster, stack: Stack, asked: str | None) -> Decision:
    """The flag, or else the inventory's word, or else the stack's; told with the launcher.

    Raises PlanError.
    """
    layers = ((asked, "asked for"), (cluster.mpi, f"orch_mpi of {cluster.source}"))
    found = ((value, why) for value, why in layers if value)
    value, why = next(found, (stack.mpi, f"stack '{stack.name}'"))
    if value not in DIALECTS:
        raise PlanError(
            f"There is no MPI '{value}' ({why}).",
            hint=did_you_mean(value, DIALECTS) or f"Known are {', '.join(DIALECTS)}.",
        )
    return Decision(topic="mpi", value=value, reason=why)


MPI_LAUNCHERS = {"mpiexec": "mpirun", "mpiexec.hydra": "mpirun", "orterun": "mpirun"}  # other names of one program


def check_launcher(name: str, options: AccelerateOptions | None, mpi: str | None) -> None:
    """Raises PlanError for one that is not there, that does not read accelerate's file, or that
    starts no MPI where the flag asks for one."""
    if name not in LAUNCHERS:
        raise PlanError(f"There is no launcher '{name}'.", hint=did_you_mean(MPI_LAUNCHERS.get(name, name), LAUNCHERS))

    if options and name not in WITH:
        raise PlanError(
            f"--accelerate-config {options.source}: --launcher {name} does not start accelerate.",
            hint=f"Add --launcher {' or '.join(WITH)}.",
        )
    if mpi and name in WITHOUT_MPI:
        raise PlanError(f"--mpi {mpi}: --launcher {name} starts the ranks without MPI.", hint="Leave one of them out.")


def choose_backend(stack: Stack, nodes: tuple[Node, ...], asked: str | None, plugins: Mapping[str, Backend]) -> Backend:
    """One of the stack's, or a plug-in that the nodes have all of. Raises PlanError."""
    name = asked or stack.backends[0]
    own = {one.name: one for one in stack.plugins}
    known = {**BACKENDS, **plugins, **own}
    if name not in known:
        raise PlanError(
            f"--backend {name}: stack '{stack.name}' has {' and '.join(stack.backends)}.",
            hint=did_you_mean(name, known)
            or "A plug-in is registered in the stack file or by an entry point: docs/how-to/backends.md.",
        )
    backend = known[name]
    if name == "ccl":
        backend = ccl_of(stack)
    check_backend(backend, nodes)
    return replace(backend, env=(*stack.environment.items(), *backend.env))


def ccl_of(stack: Stack) -> Backend:
    """Raises PlanError on a stack without bindings."""
    if stack.bindings is None or "ccl" not in stack.backends:
        raise PlanError(
            f"--backend ccl: stack '{stack.name}' has {' and '.join(stack.backends)}.",
            hint="Only stacks with bindings have ccl: `orch stacks`.",
        )
    return replace(
        BACKENDS["ccl"],
        summary=f"oneCCL, {stack.bindings.module} {stack.bindings.version}",
        module=stack.bindings.module,
        setvars=setvars_of(stack.bindings),
    )


def setvars_of(bindings: Bindings) -> str:
    """Intel's wheels need theirs; ours find their libraries by themselves."""
    return f"{bindings.module}/{bindings.setvars}" if bindings.built_by == "Intel" else ""


def check_backend(backend: Backend, nodes: tuple[Node, ...]) -> None:
    """Raises PlanError that says what the nodes lack for it, and what to do."""
    problems = [text for node in nodes for text in lacks(backend, node)]
    if problems:
        raise PlanError(
            f"--backend {backend.name} ({backend.summary}): {'; '.join(problems[:3])}.",
            hint=backend.advice or f"Add it to the requirements of the stack{of(backend)}.",
        )


def of(backend: Backend) -> str:
    return f" (the plug-in is registered by {backend.source})" if backend.source else ""


def lacks(backend: Backend, node: Node) -> list[str]:
    found = node.facts.packages
    missing = [
        f"{node.name} has no {name}" if name not in found else f"{node.name} has {name} {found[name]}, not {version}"
        for name, version in backend.requirements.items()
        if name not in found or (version and not same_version(found[name], version))
    ]
    if backend.gpu and not node.facts.gpus:
        missing.append(f"{node.name} has no GPU (/dev/nvidia0)")
    _, _, build = found.get("torch", "").partition("+")
    if backend.built_into_torch and build.startswith(PYTORCH_BUILDS):
        missing.append(f"torch {found['torch']} of {node.name} was built without {backend.name}")
    return missing


def below(backend: Backend, launcher: str, mpi: str, *, contained: bool = False) -> Backend:
    """The backend with what this launcher makes necessary. Raises PlanError for one that needs the
    launcher's socket where ranks start in containers."""
    if contained and backend.name == "mpi":
        raise PlanError(
            "--backend mpi: the launcher's socket (PMI) does not reach into a container.",
            hint="Take --backend ccl, which talks over libfabric there, or gloo; or run without a container.",
        )
    if backend.name != "ccl":
        return backend
    how = transport(launcher, mpi, contained=contained)
    return replace(
        backend, summary=f"{backend.summary}, {TRANSPORT_DESCRIPTIONS[how]}", env=(*TRANSPORTS[how], *backend.env)
    )


def choose_launch(name: str, job: Job, mpi: Decision) -> Choice[Launch]:
    """What starts the ranks. Raises PlanError."""
    launch = LAUNCHERS[name](job)
    why = launch.summary
    if mpi.reason and "MPI" in launch.summary:
        why = f"{why}; {mpi.reason}"
    return Choice(launch, (Decision(topic="launcher", value=name, reason=why),))


def tell_backend(backend: Backend) -> Choice[Backend]:
    why = f"{backend.summary}; a plug-in of {backend.source}" if backend.source else backend.summary
    return Choice(backend, (Decision(topic="backend", value=backend.name, reason=why),))
