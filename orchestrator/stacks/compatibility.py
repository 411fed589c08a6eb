"""Installed packages, and the rules that find packages and variables which do not fit together.

`pip check` finds none of these mismatches, because the wheels do not declare their torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def built_by_orch(bindings: Version) -> bool:
    """Return whether these bindings were built from bindings/ of this repository (2.13.0+orch.10)."""
    return (bindings.local or "").startswith("orch")


def is_gpu_wheel(bindings: Version) -> bool:
    """Return whether these bindings are a GPU wheel; some versions exist as such without a local part."""
    if bindings.local == "cpu" or built_by_orch(bindings):
        return False
    return bindings.local in ("xpu", "gpu") or bindings.public in XPU_ONLY_BINDINGS


Incompatibilities = Mapping[str, Any]  # the content of incompatible.toml


def mismatches(
    environment: Environment, stacks: Sequence[Stack], incompatibilities: Incompatibilities, stack: Stack | None = None
) -> tuple[Finding, ...]:
    """Return all mismatches of an environment; with a stack, also the differences from it."""
    names = [*torch_problems(environment, stacks), *shell_problems(environment)]
    if TORCH not in environment.packages and stack is None:
        names.insert(0, "no_torch")
    values = message_values(environment, stacks) if names else {}
    texts = incompatibilities["findings"]
    violations = [finding_with(texts[name], **values) for name in names]
    violations += incompatible_versions(environment, stacks, incompatibilities)
    if stack is None:
        return tuple(violations)
    reported = {mismatch.subject for mismatch in violations}
    return (*violations, *(m for m in differences(environment, stack, texts) if m.subject not in reported))


def finding_with(texts: Mapping[str, Any], **values: object) -> Finding:
    """Return the finding with these texts, in which values replace the names in braces."""
    return Finding(**{key: text.format_map(values) for key, text in texts.items()})


def message_values(env: Environment, stacks: Sequence[Stack]) -> dict[str, object]:
    """Return the values in the texts of incompatible.toml."""
    torch, ipex, bindings = map(env.version, COMPONENTS)
    stack = nearest_to_torch(stacks, torch or bindings)
    cuda_packages = sum(name.startswith("nvidia-") for name in env.packages)
    return {
        "torch": torch,
        "torch_public": torch and torch.public,
        "ipex": ipex,
        "torch_of_ipex": ipex and "{}.{}".format(*ipex.release),
        "bindings": bindings,
        "module": "torch_ccl" if has_old_module(bindings) else "oneccl_bindings_for_pytorch",
        "cuda_packages": f", with {cuda_packages} CUDA packages" if cuda_packages else "",
        "reference": reference_stack(env, stacks).name,
        "cpu_bindings": stack.bindings.version if stack.bindings else "of another stack",
        "replace_ipex": torch and replacement_for_torch(stack, torch, IPEX),
        "replace_bindings": torch and replacement_for_torch(stack, torch, BINDINGS),
    }


def torch_problems(env: Environment, stacks: Sequence[Stack]) -> Iterator[str]:
    """Yield the names of the problems with torch and with packages that were built for one torch."""
    torch, ipex, bindings = map(env.version, COMPONENTS)
    if bindings and is_gpu_wheel(bindings):
        yield "gpu_bindings"
    elif bindings and torch and not bindings_fit_torch(stacks, bindings, torch):
        yield "orchs_bindings" if built_by_orch(bindings) else "intels_bindings"
    if ipex and torch and ipex.release[:2] != torch.release[:2]:
        yield "ipex"
    if torch and not env.for_gpus and is_gpu_build(torch, env.packages):
        yield "gpu_torch"


def is_gpu_build(torch: Version, packages: Iterable[str]) -> bool:
    if torch.local == "cpu":
        return False
    return (torch.local or "").startswith(("cu", "rocm", "xpu")) or any(name.startswith("nvidia-") for name in packages)


def has_old_module(bindings: Version | None) -> bool:
    """Return whether the module of these bindings has another name than scripts of today import."""
    return bindings is not None and bindings < Version("1.12")


def shell_problems(env: Environment) -> Iterator[str]:
    """Yield the names of what ranks started by hand would not find."""
    shell, bindings = env.shell, env.version(BINDINGS)
    if shell is None:
        return
    if has_old_module(bindings):
        yield "old_module"
    if not shell.variables.get("MASTER_ADDR"):
        yield "master_addr"
    if bindings is None:
        return
    if not re.fullmatch("0*[1-9][0-9]*", shell.variables.get("CCL_WORKER_COUNT", "")):
        yield "worker_count"
    if shell.mpirun is None:
        yield "mpirun"
    elif shell.libmpi is None and not built_by_orch(bindings):
        yield "libmpi"


def incompatible_versions(env: Environment, stacks: Sequence[Stack], rules: Incompatibilities) -> Iterator[Finding]:
    """Yield the first known problem of each package with the versions of others."""
    bindings = env.version(BINDINGS)
    intel_bindings = None if bindings is None or built_by_orch(bindings) else bindings
    reported: set[str] = set()
    for entry in rules["entries"]:
        package = entry["package"]
        versions = [(env.version(name), specifier) for name, specifier in entry["versions"].items()]
        versions += [(intel_bindings, entry["intel_bindings"])] if "intel_bindings" in entry else []
        applies = all(version and SpecifierSet(spec).contains(version, prereleases=True) for version, spec in versions)
        if applies and package not in reported:
            reported.add(package)
            required = reference_stack(env, stacks).requirements[package]
            texts, values = rules["findings"]["incompatible_version"], {"hint": "", **entry}
            yield finding_with(texts, **values, version=env.version(package), required=required)


def differences(env: Environment, stack: Stack, texts: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Yield each package in which the environment differs from the stack."""
    if not stack.runs_on_python(env.python):
        yield finding_with(texts["other_python"], env=env, stack=stack)
    for package, version in stack.requirements.items():
        installed = env.packages.get(package)
        if not same_version(installed, version):
            values = {"package": package, "installed": installed or "missing", "version": version, "stack": stack}
            no_deps = " --no-deps" if package in stack.without_dependencies else ""
            yield finding_with(texts["other_version"], **values, no_deps=no_deps)


def replacement_for_torch(stack: Stack, torch: Version, package: str) -> str:
    """Return how to replace IPEX or the bindings with the version for this torch, whose nearest stack is given."""
    version = stack.requirements.get(package)
    if minor(stack.torch) != torch.release[:2]:
        return f"no stack has torch {torch}; the nearest is {describe_stack(stack)}"
    if version is None:
        return f"pip uninstall {package}: there is none for torch {torch}, as in {describe_stack(stack)}"
    return f"pip install {package}=={version}, as in {describe_stack(stack)}"


def reference_stack(env: Environment, stacks: Sequence[Stack]) -> Stack:
    """Return the stack nearest to the environment's IPEX, else its bindings, else its torch."""
    return nearest_to_torch(stacks, env.version(IPEX) or env.version(BINDINGS) or env.version(TORCH))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that may run a stack."""

    python: str  # version
    system: str  # platform.system()
    machine: str  # platform.machine()


def describe_stack(stack: Stack) -> str:
    """Return a stack as text: `'intel-2.7' (torch 2.7.0, IPEX 2.7.0, oneccl_bind_pt 2.7.0+cpu)`."""
    versions = {label: stack.requirements.get(name) for name, label in COMPONENTS.items()}
    items = [f"{label} {version}" if version else f"no {label}" for label, version in versions.items()]
    return f"'{stack.name}' ({', '.join(items)})"


def nearest_to_torch(stacks: Sequence[Stack], torch: Version | None) -> Stack:
    """Return the stack whose torch is nearest to this version; without a version, the first."""

    def distance(stack: Stack) -> list[int]:
        parts = zip(Version(stack.torch).release, torch.release if torch else (), strict=False)
        return [abs(part - requested) for part, requested in parts]

    return min(stacks, key=distance)


def bindings_fit_torch(stacks: Sequence[Stack], bindings: Version, torch: Version) -> bool:
    """Return whether these bindings were built for this torch.

    For those that orch built, and for those that no stack lists, equal major and minor versions count as a fit.
    """
    listed = [s for s in stacks if s.bindings and Version(s.bindings.version).public == bindings.public]
    if listed and not built_by_orch(bindings):
        return any(Version(stack.torch).release == torch.release for stack in listed)
    return bindings.release[:2] == torch.release[:2]


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
