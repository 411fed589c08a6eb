"""Check the architecture: layers of packages, pure packages, no import cycles, independent targets."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from collections.abc import Callable, Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from orch_node.protocol import files as protocol_files
from orch_node.protocol.events import KINDS

import orchestrator
from tests.support.syntax import nodes_of

ROOT = Path(orchestrator.__file__).parent
TRAIN = ROOT.parent / "train"
LIB = TRAIN / "lib"
# From top to bottom: a package imports only packages below it.
LAYER_NAMES = "cli api operations report provisioning targets runs load planning stacks model files screen errors"
LAYERS = tuple(LAYER_NAMES.split())
# Packages and files that use no clock, files, environment or network.
PURE = ("model", "stacks", "planning")
PURE_FILES = {
    "targets/ssh": "plan",
    "targets/kubernetes": "plan settings status run_record patch",
    "targets/batch": "plan script settings",
    "report": "charts",
}
EFFECTS = (
    "os sys io time random secrets socket subprocess tempfile shutil "
    "requests fabric ansible_runner kubernetes pathlib.Path"
)
# Files outside of a target that may import it: the registry, and its options on the command line.
ALLOWED_IMPORTERS = {
    "ssh": ("targets/registry.py",),
    "kubernetes": ("targets/registry.py", "cli/kubernetes.py", "cli/main.py"),
    "batch": ("targets/registry.py",),
}
FILES = sorted(ROOT.rglob("*.py"))
ON_NODES = sorted(LIB.rglob("*.py"))


def violations(paths: Iterable[Path], find: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """Return the names that break a rule, by file."""
    return {relative(path, ROOT.parent): names for path in paths if (names := find(path))}


@cache
def imported_names(path: Path) -> set[str]:
    """Return all names that a file imports, also inside of functions."""
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def relative(path: Path, top: Path = ROOT) -> str:
    return path.relative_to(top).as_posix()


def layer_of(name: str) -> str | None:
    """Return the package or file directly in orchestrator/ that an import names."""
    top, *submodules = name.split(".")
    return submodules[0] if top == "orchestrator" and submodules and submodules[0] in LAYERS else None


def imports_of_upper_layers(path: Path) -> set[str]:
    layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if layer == "__init__":
        return set()
    level = LAYERS.index(layer)
    return {name for name in imported_names(path) if (target := layer_of(name)) and LAYERS.index(target) < level}


def test_contributing_lists_the_layers() -> None:
    text = " ".join((ROOT.parent / "CONTRIBUTING.md").read_text().split())
    assert f"below it: {', '.join(LAYERS)}." in text


def test_imports_go_down_the_layers() -> None:
    assert violations(FILES, imports_of_upper_layers) == {}


def pure_files() -> list[Path]:
    packages = [path for name in PURE for path in sorted((ROOT / name).rglob("*.py"))]
    manifests = sorted((ROOT / "targets/kubernetes/manifests").glob("*.py"))
    return [
        *packages,
        *manifests,
        *(ROOT / top / f"{name}.py" for top, files in PURE_FILES.items() for name in files.split()),
    ]


def imported_effects(path: Path) -> set[str]:
    names = imported_names(path)
    return (names | {name.partition(".")[0] for name in names}) & {*EFFECTS.split()}


def test_pure_files_import_nothing_with_effects() -> None:
    assert violations(pure_files(), imported_effects) == {}


def modules(top: Path) -> dict[str, Path]:
    """Return the files below a folder by their module names."""
    files = {}
    for path in sorted(top.rglob("*.py")):
        name = ".".join(path.relative_to(top).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = path
    return files


def imported_modules(path: Path, files: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports; `from package import module` counts as the module."""
    names = {name for name in imported_names(path) if name in files}
    packages = {name.rpartition(".")[0] for name in names}
    return {name for name in names if name not in packages or imports_from_init(path, name, files)}


def imports_from_init(path: Path, package: str, files: dict[str, Path]) -> bool:
    """Return whether a file imports a name that the package itself defines."""
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == package
        and any(f"{package}.{alias.name}" not in files for alias in node.names)
        for node in nodes_of(path)
    )


def test_imports_have_no_cycle() -> None:
    for top in (ROOT.parent / "orchestrator", LIB):
        files = {
            name: path for name, path in modules(top if top == LIB else ROOT.parent).items() if path.is_relative_to(top)
        }
        graph = {path: {files[name] for name in imported_modules(path, files)} - {path} for path in files.values()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(" -> ".join(relative(path, ROOT.parent) for path in error.args[1]))


def test_programs_on_nodes_do_not_import_orchestrator() -> None:
    for path in TRAIN.rglob("*.py"):
        assert not any(name.startswith("orchestrator") for name in imported_names(path)), path


def test_orch_node_imports_only_torch_and_the_standard_library() -> None:
    """Protect the processes of user scripts, which import orch_node first."""
    bindings = {"oneccl_bindings_for_pytorch", "orch_kernels", "torch_ccl"}
    allowed = {*sys.stdlib_module_names, *bindings, "orch_node", "torch", "transformers"}
    for path in (LIB / "orch_node").rglob("*.py"):
        tops = {name.partition(".")[0] for name in imported_names(path)}
        assert tops <= allowed, path


def test_scripts_can_import_two_packages_of_orch() -> None:
    packages = {path.name for path in LIB.iterdir() if path.name != "__pycache__"}
    assert packages == {"orch_node", "orch_training"}


def foreign_targets(path: Path) -> list[str]:
    """Return the targets that the file must not name."""
    return [
        target
        for target, allowed in ALLOWED_IMPORTERS.items()
        if not relative(path).startswith(f"targets/{target}/") and relative(path) not in allowed
    ]


def imports_of_targets(path: Path) -> set[str]:
    packages = tuple(f"orchestrator.targets.{target}" for target in foreign_targets(path))
    return {name for name in imported_names(path) if name.startswith(packages)}


def test_targets_do_not_import_each_other() -> None:
    assert violations(FILES, imports_of_targets) == {}


# Parts of identifiers that belong to a target.
TARGET_TERMS = {"kubernetes": ("kube", "k8s", "pod_", "_pod")}
# Parts of identifiers that belong to a batch system, which only its own modules and their options know.
SYSTEM_TERMS = {
    "pbs": ("pbs", "qsub", "qstat", "qdel", "tmrsh"),
    "slurm": ("slurm", "sbatch", "srun", "scontrol", "squeue", "sacct"),
}
SYSTEM_OPTIONS = ROOT / "targets" / "batch" / "options.py"


@cache
def identifiers(path: Path) -> set[str]:
    """Return all names that a file defines or uses."""
    names: set[str] = set()
    for node in nodes_of(path):
        for field in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, field, None)
            names |= {value} if isinstance(value, str) else set()
    return names


def identifiers_of_targets(path: Path) -> set[str]:
    terms = [term for target in foreign_targets(path) for term in TARGET_TERMS.get(target, ())]
    return {name for name in identifiers(path) if any(term in name.lower() for term in terms)}


def test_identifiers_of_a_target_stay_in_it() -> None:
    assert violations(FILES, identifiers_of_targets) == {}


def identifiers_of_systems(path: Path) -> set[str]:
    terms = [term for system, terms in SYSTEM_TERMS.items() if path.stem != system for term in terms]
    return {name for name in identifiers(path) if any(term in name.lower() for term in terms)}


def test_identifiers_of_a_batch_system_stay_in_its_modules() -> None:
    assert [relative(path, ROOT.parent) for path in [*FILES, *ON_NODES] if path.stem in SYSTEM_TERMS] == [
        "orchestrator/targets/batch/pbs.py",
        "orchestrator/targets/batch/slurm.py",
        "train/lib/orch_node/batch/pbs.py",
        "train/lib/orch_node/batch/slurm.py",
    ]
    assert violations([path for path in [*FILES, *ON_NODES] if path != SYSTEM_OPTIONS], identifiers_of_systems) == {}


def messages_about_systems(path: Path) -> set[str]:
    """Return the strings, except docstrings, in which a shared module names a batch system."""
    docstrings = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    strings = (node for node in nodes_of(path) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    texts = {node.value for node in strings if isinstance(node.value, str)}
    return {text for text in texts if any(term in text.lower() for terms in SYSTEM_TERMS.values() for term in terms)}


def test_messages_of_shared_modules_name_no_batch_system() -> None:
    folders = (ROOT / "targets" / "batch", LIB / "orch_node" / "batch")
    paths = [path for folder in folders for path in folder.glob("*.py") if path.stem not in SYSTEM_TERMS]
    assert violations([path for path in paths if path != SYSTEM_OPTIONS], messages_about_systems) == {}


# Only the protocol knows the names of events and that they are JSON.
PROTOCOL = LIB / "orch_node" / "protocol"
FILE_NAMES = {value for name, value in vars(protocol_files).items() if name.isupper()}
# These are also ordinary words.
ORDINARY_WORDS = {"stop", "node", "ranks", "stacks"}


def names_of_the_protocol(path: Path) -> set[str]:
    """Return events, file names and keys of the protocol that a file spells out."""
    nodes = nodes_of(path)
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    lookups = (node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name))
    keys = {ast.unparse(node) for node in lookups if node.value.id in ("layout", "plan", "event")}
    return strings & ({*KINDS} | FILE_NAMES) - ORDINARY_WORDS | keys


def test_programs_on_nodes_take_names_from_the_protocol() -> None:
    paths = [path for path in ON_NODES if path.is_relative_to(LIB / "orch_node")]
    assert violations((path for path in paths if not path.is_relative_to(PROTOCOL)), names_of_the_protocol) == {}


def is_function(target: str) -> bool:
    module, _, function = target.partition(":")
    return callable(getattr(importlib.import_module(module), function or "main", None))


def test_each_subcommand_of_the_node_program_names_a_function() -> None:
    subcommands = runpy.run_path(str(TRAIN / "node.py"))["SUBCOMMANDS"]
    assert [name for name, target in subcommands.items() if not is_function(target)] == []


CHECKOUT = ROOT.parent
BENCHMARKS = sorted((CHECKOUT / "benchmarks").glob("*.py"))


def module_path(name: str) -> Path | None:
    """Return the file of a module of this repository, or None if there is none."""
    for top in (CHECKOUT, LIB):
        path = top.joinpath(*name.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.exists():
                return candidate
    return None


def missing_imports(path: Path) -> set[str]:
    """Return imports from packages of this repository that do not exist."""
    packages = ("orchestrator", "orch_node", "orch_training", "tests")
    missing: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in packages:
            module = module_path(str(node.module))
            defined = {*identifiers(module)} if module else set()
            for alias in node.names:
                if alias.name not in defined and not module_path(f"{node.module}.{alias.name}"):
                    missing.add(f"{node.module}.{alias.name}")
    return missing


def test_benchmarks_import_existing_names() -> None:
    """Check imports of the benchmarks, which mypy does not read and most of which no test runs."""
    assert violations(BENCHMARKS, missing_imports) == {}
