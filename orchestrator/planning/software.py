"""The software of the ranks: the stack, the backend, the precision and the preloaded libraries that fit together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise

from orch_node.protocol.layout import AUTO, BF16, BF16_FLAGS, FP32, describe_lack
from packaging.version import Version

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model import process_group
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hosts import fold
from orchestrator.model.printable import counted
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.stacks.stack import IPEX, Stack, same_version

NO_DDP_BACKEND_CCL = Version("5.1")  # of transformers


def check_recipe_fits(recipe: Recipe, stack: Stack, arguments: Sequence[str] = ()) -> None:
    """Refuse a recipe that does not run on a stack, and arguments with which a script is known to fail there.

    Raises:
        PlanError: if the recipe names other stacks, or a script with the Trainer would end at once.
    """
    if recipe.stacks and not any(fnmatchcase(stack.name, pattern) for pattern in recipe.stacks):
        raise PlanError.about("recipe-stack", recipe=recipe, stack=stack, stacks=", ".join(recipe.stacks))
    parts = " ".join(arguments).replace("=", " ").split()
    transformers = stack.requirements.get("transformers")
    is_requested = ("--ddp_backend", "ccl") in pairwise(parts)
    if is_requested and transformers and Version(transformers) >= NO_DDP_BACKEND_CCL:
        raise PlanError.about("ddp-backend-ccl", version=transformers)


def choose_preload(stack: Stack, nodes: tuple[Node, ...], software: str = "") -> Choice[tuple[str, ...]]:
    """Return the libraries for LD_PRELOAD whose paths are the same on every node.

    Args:
        stack: the stack, which names the libraries.
        nodes: the nodes.
        software: where each rank finds the libraries itself, such as `the image has`; '' if they are preloaded by path.
    """
    if software:
        value = ", ".join(stack.preload) or "nothing"
        reason = f"if {software} them" if stack.preload else ""
        return Choice((), (Decision(topic="preload", value=value, reason=reason),))
    first = nodes[0].facts.libraries
    common = {name for name in first if all(node.facts.libraries.get(name) == first[name] for node in nodes)}
    paths = tuple(first[name] for name in stack.preload if name in common)
    missing = ", ".join(name for name in stack.preload if name not in common)
    reason = f"not installed everywhere: {missing}" if missing else ""
    value = ", ".join(paths) or "nothing"
    return Choice(paths, (Decision(topic="preload", value=value, reason=reason),))


def fit_stack(stack: Stack, backend: Backend, nodes: tuple[Node, ...]) -> Choice[Stack]:
    """Return the stack as the backend needs it.

    Raises:
        PlanError: if a node lacks a part of it.
    """
    stack = stack.for_backend(backend.name)
    for node in nodes:
        stack.check(node)
    end = stack.end_of_life
    warnings = [Decision("warning", f"{stack.name} is {end.describe()}", end.reason)] if end else []
    return Choice(stack, (Decision("stack", stack.name, stack.summary), *warnings))


def check_ipex(recipe: Recipe, stack: Stack, *, precision: str) -> None:
    """Raise PlanError if training with --ipex is impossible or gives wrong results."""
    if recipe.own_script:
        raise PlanError.about("ipex-of-script", script=recipe.script)
    if not recipe.ipex:
        raise PlanError.about("ipex-of-recipe", recipe=recipe)
    precision = BF16 if precision == AUTO else precision  # the ranks may choose it
    stack.check_ipex(precision)


def choose_backend(
    stack: Stack, nodes: tuple[Node, ...], requested: str | None, plugins: Mapping[str, Backend]
) -> Backend:
    """Return the requested backend, or the stack's default.

    Raises:
        PlanError: if it does not exist, or a node lacks a requirement.
    """
    name = requested or stack.backends[0]
    backends = {**process_group.BACKENDS, **plugins, **{plugin.name: plugin for plugin in stack.plugins}}
    backend = ccl_backend(stack) if name == "ccl" else process_group.find_backend(name, backends)
    if backend is None:
        gpu_hint = process_group.GPU_HINT if any(node.facts.gpus for node in nodes) else ""
        hint = f"{did_you_mean(name, backends)} Packages add backends by the entry point orch.backends."
        if name == "ccl":
            hint = f"`orch stacks` shows which stacks have bindings for ccl. {gpu_hint}".strip()
        raise PlanError(f"--backend {name}: stack '{stack.name}' has {' and '.join(stack.backends)}.", hint=hint)
    check_backend(backend, nodes)
    # With IPEX, accelerate must not move the model to another device: the weights that IPEX packed would stay.
    env = {"ACCELERATE_TORCH_DEVICE": "cpu"} if IPEX in stack.requirements else {}
    return replace(backend, env={**env, **backend.env})


def ccl_backend(stack: Stack) -> Backend | None:
    """Return the ccl backend of the stack, or None if the stack has no bindings."""
    if stack.bindings is None or "ccl" not in stack.backends:
        return None
    bindings = stack.bindings
    # Only Intel's wheels need their script; the bindings that orch builds find their libraries themselves.
    setvars = f"{bindings.module}/{bindings.setvars}" if bindings.built_by == "Intel" else ""
    summary = f"oneCCL, {bindings.module} {bindings.version}"
    return replace(process_group.BACKENDS["ccl"], summary=summary, module=bindings.module, setvars=setvars)


def check_backend(backend: Backend, nodes: tuple[Node, ...]) -> None:
    """Raise PlanError if nodes lack a requirement of the backend."""
    problems = []
    for node in nodes:
        packages = node.facts.packages
        for name, version in backend.requirements.items():
            if name not in packages:
                problems.append(f"{node.name} has no {name}")
            elif version and not same_version(packages[name], version):
                problems.append(f"{node.name} has {name} {packages[name]}, not {version}")
        _, _, build = packages.get("torch", "").partition("+")
        if backend.gpu and not node.facts.gpus:
            problems.append(f"{node.name} has no GPU")
        elif backend.gpu and build == "cpu":
            problems.append(f"torch {packages['torch']} of {node.name} is built for CPUs")
        if backend.built_into_torch and build.startswith(process_group.PYTORCH_BUILDS):
            problems.append(f"torch {packages['torch']} of {node.name} was built without {backend.name}")
    if problems:
        source = f" (the plug-in is registered by {backend.source})" if backend.source else ""
        hint = backend.hint or f"Add it to the requirements of the stack{source}."
        problem = f"--backend {backend.name} ({backend.summary}): {'; '.join(problems[:3])}."
        needs_other_torch = backend.gpu and all(node.facts.gpus for node in nodes)
        raise PlanError(problem, hint=process_group.GPU_HINT if needs_other_torch else hint)


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
            raise PlanError.about(
                "ranks-per-gpu", ppn=ppn, node=node, gpus=counted(count, "GPU"), backend=backend, count=count
            )


def adapt_backend(backend: Backend, launcher: str, mpi: str, *, contained: bool = False) -> Backend:
    """Return the backend with the variables that the launcher requires.

    MPI initializes correctly only under hydra, where Intel's library serves both. Open MPI's daemon speaks PMIx,
    torchrun has no such service, and hydra's socket survives neither an `accelerate launch` between hydra and a rank
    nor the start in a container. Otherwise oneCCL communicates over libfabric (ofi).

    Raises:
        PlanError: if it needs the launcher's socket, and the ranks start in containers.
    """
    if contained and backend.name == "mpi":
        raise PlanError.about("mpi-in-container")
    if backend.name != "ccl":
        return backend
    under_hydra = not contained and launcher in ("mpirun", "accelerate") and mpi in ("intel", "mpich")
    name = "mpi" if under_hydra else "ofi"
    summary = f"{backend.summary}, {process_group.TRANSPORT_DESCRIPTIONS[name]}"
    return replace(backend, summary=summary, env={**process_group.TRANSPORTS[name], **backend.env})


OF_SCRIPT = "left to the script"  # the precision of a user's own script
SLOW = "SLOW: "


def choose_precision(
    recipe: Recipe,
    nodes: tuple[Node, ...],
    request: TrainRequest,
    resume: Resume | None = None,
    *,
    by_accelerate: bool = False,
) -> Choice[str]:
    """Return bf16, fp32, `auto` if the ranks will choose, or OF_SCRIPT for a user's own script.

    Args:
        recipe: what is trained.
        nodes: all nodes that may have ranks; empty if they are not known yet.
        request: what the user asks for.
        resume: the unfinished run that is continued.
        by_accelerate: whether accelerate passes the precision on to the user's own script.

    Raises:
        PlanError: if the precision is unknown, or needs BF16 instructions that a node lacks, or is not BF16
            although --allow-slow-bf16 is given.
    """
    if recipe.own_script:
        value, reason = script_precision(recipe, request, by_accelerate=by_accelerate)
    else:
        value, reason = recipe_precision(recipe, nodes, request, resume)
    if value == BF16 and nodes:
        reason = "; ".join(filter(None, (reason, bf16_instructions(nodes, reason, request))))
    if request.allow_slow_bf16 and value != BF16:
        raise PlanError.about("slow-bf16-unused", precision=value)
    return Choice(value, (Decision(topic="precision", value=value, reason=reason),))


def script_precision(recipe: Recipe, request: TrainRequest, *, by_accelerate: bool) -> tuple[str, str]:
    """Return the precision of a user's own script, and the reason.

    Raises:
        PlanError: if nothing can pass the requested precision on to the script.
    """
    if request.precision == AUTO:
        return OF_SCRIPT, ""
    if not by_accelerate:
        raise PlanError.about("precision-of-script", precision=request.precision, script=recipe.script)
    if request.precision not in (BF16, FP32):
        raise PlanError(f"Unknown precision '{request.precision}'.", hint=f"Use {AUTO}, {BF16} or {FP32}.")
    return request.precision, "requested; accelerate passes it on to the script"


def recipe_precision(
    recipe: Recipe, nodes: tuple[Node, ...], request: TrainRequest, resume: Resume | None
) -> tuple[str, str]:
    """Return the precision of a recipe, and the reason.

    Raises:
        PlanError: if the recipe does not have the requested precision.
    """
    value = request.precision
    if value not in (AUTO, *recipe.precisions):
        hint = did_you_mean(value, (AUTO, *recipe.precisions))
        raise PlanError(f"Recipe '{recipe.name}' has no precision '{value}'.", hint=hint)
    if value != AUTO:
        return value, "requested"
    if resume is not None and resume.attempt > 1 and resume.record.precision in recipe.precisions:
        return resume.record.precision, "as in the last attempt"
    if len(recipe.precisions) == 1:
        return next(iter(recipe.precisions)), f"the only one of recipe '{recipe.name}'"
    if not nodes:
        return AUTO, f"{BF16} if all nodes have instructions for it, otherwise {FP32}"
    lacking = without_bf16(nodes)
    return (FP32, describe_lack(lacking)) if lacking else (BF16, "")


def without_bf16(nodes: tuple[Node, ...]) -> str:
    """Return the names of the nodes without BF16 instructions, folded; empty if all have them."""
    return fold(node.name for node in nodes if node.facts.bf16 is None)


def bf16_instructions(nodes: tuple[Node, ...], reason: str, request: TrainRequest) -> str:
    """Return which BF16 instructions the nodes have.

    Raises:
        PlanError: if a node has none, and emulation is not allowed.
    """
    lacking = without_bf16(nodes)
    if not lacking:
        flags = sorted({node.facts.bf16 or "" for node in nodes})
        return f"{' and '.join(flags)} on {f'all {len(nodes)} nodes' if len(nodes) > 1 else nodes[0].name}"
    if request.allow_slow_bf16:
        return f"{SLOW}{describe_lack(lacking)}"
    raise PlanError.about("no-bf16", reason=reason, lack=describe_lack(lacking), flags=", ".join(BF16_FLAGS))
