"""Check the architecture: layers of packages, pure packages, no import cycles, independent targets."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import sys
from collections.abc import Callable, Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from string import Formatter

import pytest
from orch_node.rank.checks import MESSAGES

import orchestrator
from orchestrator.errors import problems
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
    "targets/kubernetes": "plan settings status run_record manifests names",
    "targets/batch": "plan settings",
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


def imports_of_upper_layers(path: Path) -> set[str]:
    layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
    upper = LAYERS[: LAYERS.index(layer)] if layer != "__init__" else ()
    return {name for name in imported_names(path) if name.startswith("orchestrator.") and name.split(".")[1] in upper}


def test_imports_go_down_the_layers() -> None:
    assert violations(FILES, imports_of_upper_layers) == {}


def imported_effects(path: Path) -> set[str]:
    names = imported_names(path)
    if "random.Random" in names:  # numbers from a seed
        names.remove("random")
    return (names | {name.partition(".")[0] for name in names if name != "random.Random"}) & {*EFFECTS.split()}


def test_pure_files_import_nothing_with_effects() -> None:
    packages = [path for name in PURE for path in (ROOT / name).rglob("*.py")]
    files = [ROOT / top / f"{name}.py" for top, names in PURE_FILES.items() for name in names.split()]
    assert violations([*packages, *files], imported_effects) == {}


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


def test_orch_node_imports_only_torch_and_the_standard_library() -> None:
    """Protect the processes of user scripts, which import orch_node first."""
    for path in TRAIN.rglob("*.py"):
        assert not any(name.startswith("orchestrator") for name in imported_names(path)), path
    node_program = runpy.run_path(str(TRAIN / "node.py"))
    for target in node_program["SUBCOMMANDS"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function or "main", None)), target
    bindings = {"oneccl_bindings_for_pytorch", "orch_kernels", "torch_ccl"}
    allowed = {*sys.stdlib_module_names, *bindings, "orch_node", "torch", "transformers"}
    for path in (LIB / "orch_node").rglob("*.py"):
        assert {name.partition(".")[0] for name in imported_names(path)} <= allowed, path


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


# Parts of identifiers that belong to a target, or to a batch system, which only its own modules know.
TERMS = {
    "kubernetes": ("kube", "k8s", "pod_", "_pod"),
    "pbs": ("pbs", "qsub", "qstat", "qdel", "tmrsh"),
    "slurm": ("slurm", "sbatch", "srun", "scontrol", "squeue", "sacct"),
}
SYSTEMS = {"pbs", "slurm"}
KNOW_ALL_SYSTEMS = ROOT / "targets" / "batch" / "options.py"


@cache
def identifiers(path: Path) -> set[str]:
    """Return all names that a file defines or uses."""
    names: set[str] = set()
    for node in nodes_of(path):
        for field in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, field, None)
            names |= {value} if isinstance(value, str) else set()
    return names


def foreign_identifiers(path: Path) -> set[str]:
    """Return the identifiers of targets and batch systems that the file must not use."""
    targets = foreign_targets(path) if path.is_relative_to(ROOT) else ()
    systems = () if path == KNOW_ALL_SYSTEMS else SYSTEMS - {path.stem}
    terms = [term for name in (*targets, *systems) for term in TERMS.get(name, ())]
    return {name for name in identifiers(path) if any(term in name.lower() for term in terms)}


def test_identifiers_of_a_target_and_of_a_batch_system_stay_in_their_modules() -> None:
    assert [relative(path, ROOT.parent) for path in [*FILES, *ON_NODES] if path.stem in SYSTEMS] == [
        "orchestrator/targets/batch/pbs.py",
        "orchestrator/targets/batch/slurm.py",
        "train/lib/orch_node/batch/pbs.py",
        "train/lib/orch_node/batch/slurm.py",
    ]
    assert violations([*FILES, *ON_NODES], foreign_identifiers) == {}


def test_errors_get_the_values_in_their_texts() -> None:
    fields = {name: fields_of(*texts.values()) for name, texts in problems().items()}
    for name, keywords in named_calls(FILES, "about"):
        assert keywords == fields[name], name


def test_messages_of_ranks_get_the_values_in_their_texts() -> None:
    fields = {name: fields_of(*lines) for name, lines in MESSAGES.items()}
    calls = named_calls([*FILES, *(ROOT.parent / "train").rglob("*.py")], "describe")
    assert len(calls) > len(fields) / 2
    for name, keywords in calls:
        assert None in keywords or keywords == fields[name], name  # None: further values are in a dict


def fields_of(*texts: str) -> set[str | None]:
    return {re.split(r"[.[]", key)[0] for text in texts for _, key, *_ in Formatter().parse(text) if key}


def named_calls(paths: Iterable[Path], function: str) -> list[tuple[str, set[str | None]]]:
    """Return the name of a text in each call of a function, and the names of the other arguments."""
    calls = [node for path in paths for node in nodes_of(path) if isinstance(node, ast.Call) and node.args]
    return [
        (call.args[0].value, {keyword.arg for keyword in call.keywords})
        for call in calls
        if function in (getattr(call.func, "attr", None), getattr(call.func, "id", None))
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    ]
