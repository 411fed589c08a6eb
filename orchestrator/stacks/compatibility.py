"""Installed packages, and the rules that find packages and variables which do not fit together.

`pip check` finds none of these mismatches, because the wheels do not declare their torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from orchestrator.model.decision import Finding
from orchestrator.stacks.stack import BINDINGS, IPEX, TORCH, Index, Stack, minor, same_version

# Releases of oneccl_bind_pt that exist for Intel GPUs only, under the same name as the CPU wheels:
# the versions of intel/torch-ccl that are tagged +gpu or +xpu but not +cpu.
XPU_ONLY_BINDINGS = frozenset(
    ["1.13.100", "1.13.200", "2.0.100", "2.1.100", "2.1.200", "2.1.300", "2.1.400", "2.3.100", "2.8.0"]
)
# Components of a stack -> how messages name them.
COMPONENTS = {TORCH: "torch", IPEX: "IPEX", BINDINGS: "oneccl_bind_pt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """The part of a shell's environment that ranks started by hand inherit."""

    variables: Mapping[str, str]
    mpirun: str | None  # path
    libmpi: str | None  # path


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The packages that an interpreter can import."""

    name: str
    python: str  # version
    packages: Mapping[str, str]  # distribution -> version
    shell: Shell | None = None  # if ranks are started without orch
    for_gpus: bool = False  # whether ranks may use GPUs

    def version(self, package: str) -> Version | None:
        """Return a package's version, None if it is missing or has none (an unpacked source tree)."""
        try:
            return Version(self.packages[package])
        except (KeyError, InvalidVersion):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incompatibility:
    """Versions of packages that do not work together, as incompatible.toml states them."""

    package: str
    versions: dict[str, str]  # package -> specifier
    problem: str
    evidence: str
    hint: str = ""
    intel_bindings: str | None = None  # a specifier for Intel's bindings; None if they do not matter


def built_by_orch(bindings: Version) -> bool:
    """Return whether these bindings were built from bindings/ of this repository (2.13.0+orch.10)."""
    return (bindings.local or "").startswith("orch")


def is_gpu_wheel(bindings: Version) -> bool:
    """Return whether these bindings are a GPU wheel; some versions exist as such without a local part."""
    if bindings.local == "cpu" or built_by_orch(bindings):
        return False
    return bindings.local in ("xpu", "gpu") or bindings.public in XPU_ONLY_BINDINGS


Rule = Callable[[Environment, Sequence[Stack]], Iterator[Finding]]


def mismatches(
    environment: Environment, stacks: Sequence[Stack], entries: Sequence[Incompatibility], stack: Stack | None = None
) -> tuple[Finding, ...]:
    """Return all mismatches of an environment; with a stack, also the differences from it."""
    violations = [mismatch for rule in RULES for mismatch in rule(environment, stacks)]
    violations += incompatible_versions(environment, stacks, entries)
    if stack is None:
        return (*missing_torch(environment, stacks), *violations)
    reported = {mismatch.subject for mismatch in violations}
    return (*violations, *(m for m in differences(environment, stack) if m.subject not in reported))


def missing_torch(env: Environment, stacks: Sequence[Stack]) -> Iterator[Finding]:
    """Yield a mismatch if torch is not installed."""
    if TORCH not in env.packages:
        yield Finding(
            subject=TORCH,
            message="torch is not installed",
            evidence="no training can run in this environment",
            hint="`orch setup` installs a stack in orch's environment; for others `orch stacks requirements "
            f"{reference_stack(env, stacks).name}` prints it for pip",
        )


def ipex_for_another_torch(env: Environment, stacks: Sequence[Stack]) -> Iterator[Finding]:
    """Yield a mismatch if IPEX and torch differ in their minor versions."""
    torch, ipex = env.version(TORCH), env.version(IPEX)
    if ipex is None or torch is None or ipex.release[:2] == torch.release[:2]:
        return
    required = ".".join(map(str, ipex.release[:2]))
    yield Finding(
        subject=IPEX,
        message=f"IPEX {ipex} with torch {torch}",
        evidence=f"IPEX {required} is built for torch {required}; from 1.12 on, importing it ends the "
        f"program (exit 127): 'needs to work with PyTorch {required}.*, but PyTorch {torch} is found'",
        hint=replacement_for_torch(stacks, torch, IPEX),
    )


def bindings_for_another_torch(env: Environment, stacks: Sequence[Stack]) -> Iterator[Finding]:
    """Yield a mismatch if the oneCCL bindings were built for another torch."""
    torch, bindings = env.version(TORCH), env.version(BINDINGS)
    if bindings is None or torch is None or is_gpu_wheel(bindings):
        return
    if built_by_orch(bindings):
        fits = minor(str(bindings)) == minor(str(torch))
        effect = "importing them with any other torch raises ImportError"
    else:
        fits = bindings_fit_torch(stacks, str(bindings), str(torch))
        effect = "they do not check it, and importing them with any other torch fails with 'undefined symbol'"
    if not fits:
        yield Finding(
            subject=BINDINGS,
            message=f"oneccl_bind_pt {bindings} with torch {torch}",
            evidence=f"the bindings are C++ built against one torch: {effect}",
            hint=replacement_for_torch(stacks, torch, BINDINGS),
        )


def gpu_bindings(env: Environment, stacks: Sequence[Stack]) -> Iterator[Finding]:
    """Yield a mismatch if the oneCCL bindings are a GPU wheel."""
    bindings = env.version(BINDINGS)
    if bindings is not None and is_gpu_wheel(bindings):
        torch = env.version(TORCH)
        stack = nearest_to_torch(stacks, torch.public if torch else bindings.public)
        cpu_version = stack.bindings.version if stack.bindings else "of another stack"
        yield Finding(
            subject=BINDINGS,
            message=f"oneccl_bind_pt {bindings} is the wheel for Intel GPUs",
            evidence="it has the same name as the CPU wheel and needs SYCL and a GPU build of torch",
            hint=f"pip install oneccl_bind_pt=={cpu_version}, the +cpu wheel from Intel's cpu index",
        )


def cuda_torch(env: Environment, stacks: Sequence[Stack]) -> Iterator[Finding]:
    """Yield a mismatch if torch is a GPU build, but no rank uses a GPU."""
    torch = env.version(TORCH)
    if torch is None or torch.local == "cpu" or env.for_gpus:
        return
    nvidia = [name for name in env.packages if name.startswith("nvidia-")]
    if not (torch.local or "").startswith(("cu", "rocm", "xpu")) and not nvidia:
        return
    yield Finding(
        subject=TORCH,
        message=f"torch {torch} is a GPU build" + (f", with {len(nvidia)} CUDA packages" * bool(nvidia)),
        evidence="it works on CPU nodes, but takes several GB on each of them",
        hint=f"pip install torch=={torch.public}+cpu --index-url https://download.pytorch.org/whl/cpu, "
        "and uninstall the packages that start with nvidia-",
    )


def incompatible_versions(
    env: Environment, stacks: Sequence[Stack], entries: Sequence[Incompatibility]
) -> Iterator[Finding]:
    """Yield the first known problem of each package with the versions of others."""
    bindings = env.version(BINDINGS)
    intel_bindings = None if bindings is None or built_by_orch(bindings) else bindings
    reported: set[str] = set()
    for entry in entries:
        versions = [(env.version(name), specifier) for name, specifier in entry.versions.items()]
        versions += [] if entry.intel_bindings is None else [(intel_bindings, entry.intel_bindings)]
        applies = all(version and SpecifierSet(spec).contains(version, prereleases=True) for version, spec in versions)
        if applies and entry.package not in reported:
            reported.add(entry.package)
            yield Finding(
                subject=entry.package,
                message=f"{entry.package} {env.version(entry.package)} {entry.problem}",
                evidence=entry.evidence,
                hint=install_command(env, stacks, entry.package) + entry.hint,
            )


def old_module_name(env: Environment, stacks: Sequence[Stack]) -> Iterator[Finding]:
    """Yield a mismatch for bindings whose module has another name than scripts of today import."""
    bindings = env.version(BINDINGS)
    if bindings is None or bindings >= Version("1.12") or env.shell is None:
        return
    yield Finding(
        subject=f"{BINDINGS} module",
        message=f"oneccl_bind_pt {bindings} is imported as torch_ccl",
        evidence="1.12 introduced the name oneccl_bindings_for_pytorch: importing it fails here",
        hint="import torch_ccl, and source env/setvars.sh in its folder",
    )


def shell_problems(env: Environment, stacks: Sequence[Stack]) -> Iterator[Finding]:
    """Yield the variables and programs that ranks started by hand would not find."""
    shell, bindings = env.shell, env.version(BINDINGS)
    if shell is None:
        return
    if not shell.variables.get("MASTER_ADDR"):
        yield Finding(
            subject="MASTER_ADDR",
            message="MASTER_ADDR is not set",
            evidence="ranks started by mpirun meet there: 'environment variable MASTER_ADDR expected, but not set'",
            hint="export MASTER_ADDR=<address of node0>; `orch train` sets it",
        )
    if bindings is not None:
        yield from ccl_shell_problems(shell, bindings)


def ccl_shell_problems(shell: Shell, bindings: Version) -> Iterator[Finding]:
    """Yield what the backend ccl needs and the shell does not provide."""
    count = shell.variables.get("CCL_WORKER_COUNT", "")
    if not count.isdigit() or int(count) < 1:
        yield Finding(
            subject="CCL_WORKER_COUNT",
            message="CCL_WORKER_COUNT is not set to 1 or more",
            evidence="accelerate up to 1.12 then silently uses gloo, or fails with 'Your assigned "
            "backend ccl is not avaliable, please use gloo'",
            hint="export CCL_WORKER_COUNT=1",
        )
    if shell.mpirun is None or (shell.libmpi is None and not built_by_orch(bindings)):
        module = "torch_ccl" if bindings < Version("1.12") else "oneccl_bindings_for_pytorch"
        missing = "mpirun" if shell.mpirun is None else "libmpi.so.12"
        yield Finding(
            subject="setvars",
            message=f"{missing} not found: setvars.sh was not sourced",
            evidence="'mpirun: command not found', or at the first collective 'could not open the library: "
            "libmpi.so.12'",
            hint=f". \"$(python -c 'import {module} as m; print(m.__path__[0])')/env/setvars.sh\"",
        )


def differences(env: Environment, stack: Stack) -> Iterator[Finding]:
    """Yield each package in which the environment differs from the stack."""
    if not stack.runs_on_python(env.python):
        yield Finding(
            subject="python",
            message=f"Python {env.python}, but '{stack.name}' requires {stack.python}",
            evidence="its wheels exist for these versions only",
            hint=f"create the environment with Python {stack.python}",
        )
    for package, version in stack.requirements.items():
        installed = env.packages.get(package)
        if not same_version(installed, version):
            no_deps = " --no-deps" if package in stack.without_dependencies else ""
            yield Finding(
                subject=package,
                message=f"{package} is {installed or 'missing'}, should be {version}",
                evidence=f"stack '{stack.name}' is locked: its versions are known to fit together",
                hint=f"pip install{no_deps} {package}=={version}",
            )


def replacement_for_torch(stacks: Sequence[Stack], torch: Version, package: str) -> str:
    """Return how to replace IPEX or the bindings with the version for this torch."""
    stack = nearest_to_torch(stacks, torch.public)
    version = stack.requirements.get(package)
    if minor(stack.torch) != torch.release[:2]:
        return f"no stack has torch {torch}; the nearest is {describe_stack(stack)}"
    if version is None:
        return f"pip uninstall {package}: there is none for torch {torch}, as in {describe_stack(stack)}"
    return f"pip install {package}=={version}, as in {describe_stack(stack)}"


def install_command(env: Environment, stacks: Sequence[Stack], package: str) -> str:
    """Return the command that installs the reference stack's version of a package."""
    return f"pip install {package}=={reference_stack(env, stacks).requirements[package]}"


def reference_stack(env: Environment, stacks: Sequence[Stack]) -> Stack:
    """Return the stack nearest to the environment's IPEX, else its bindings, else its torch."""
    version = env.version(IPEX) or env.version(BINDINGS) or env.version(TORCH)
    return nearest_to_torch(stacks, version.public if version else None)


RULES: tuple[Rule, ...] = (
    gpu_bindings,
    bindings_for_another_torch,
    ipex_for_another_torch,
    cuda_torch,
    old_module_name,
    shell_problems,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that may run a stack."""

    python: str  # version
    system: str  # platform.system()
    machine: str  # platform.machine()


def matches(version: str | None, requested: str) -> bool:
    """Return whether a version satisfies a request.

    A short request is a prefix: 2.7 matches 2.7.1. A local part must be equal, and a version
    without one counts as `+cpu`, because all stacks are for CPUs.
    """
    if version is None:
        return False
    public, _, local = requested.partition("+")
    if local and local != (version.partition("+")[2] or "cpu"):
        return False
    prefix = Version(public).release
    return Version(version).release[: len(prefix)] == prefix


def version_distance(version: str, requested: str) -> tuple[int, ...]:
    """Return how far apart two versions are in each part of their release numbers."""
    releases = zip(Version(version).release, Version(requested).release, strict=False)
    return tuple(abs(a - b) for a, b in releases)


def describe_stack(stack: Stack) -> str:
    """Return a stack as text: `'intel-2.7' (torch 2.7.0, IPEX 2.7.0, oneccl_bind_pt 2.7.0+cpu)`."""
    items = [
        f"{label} {version}" if (version := stack.requirements.get(name)) else f"no {label}"
        for name, label in COMPONENTS.items()
    ]
    return f"'{stack.name}' ({', '.join(items)})"


def nearest_to_torch(stacks: Sequence[Stack], torch: str | None) -> Stack:
    """Return the stack whose torch is nearest to this version; without a version, the first."""
    if torch is None:
        return stacks[0]
    requested = torch.partition("+")[0]
    return min(
        stacks, key=lambda stack: (version_distance(stack.torch, requested), not matches(stack.torch, requested))
    )


def bindings_fit_torch(stacks: Sequence[Stack], bindings: str, torch: str) -> bool:
    """Return whether these bindings were built for this torch.

    For bindings that no stack lists, equal major and minor versions count as a fit.
    """
    listed = [s for s in stacks if s.bindings and matches(s.bindings.version, bindings)]
    if listed:
        return any(matches(torch.partition("+")[0], stack.torch) for stack in listed)
    return minor(bindings) == minor(torch)


def status(stack: Stack, machine: Machine) -> tuple[str, ...]:
    """Return what the machine lacks to run the stack, or `works here`, and any end of life."""
    needs = []
    if machine.system != "Linux" or machine.machine != "x86_64":
        needs.append("needs Linux on x86-64")
    if not stack.runs_on_python(machine.python):
        needs.append(f"needs Python {stack.python}")
    needs += dict.fromkeys(f"needs {index.name}" for index in stack.indexes if index.only_there)
    end_of_life = [stack.end_of_life.describe()] if stack.end_of_life else []
    return (*(needs or ["works here"]), *end_of_life)


def builds_bindings(stack: Stack) -> bool:
    """Return whether orch builds the stack's oneCCL bindings from source."""
    return stack.bindings is not None and stack.bindings.built_by == "orch"


def index_for(stack: Stack, package: str) -> Index | None:
    """Return the package index that the stack uses for this package; None for pip's default."""
    return next((index for index in stack.indexes if package in index.serves), None)
