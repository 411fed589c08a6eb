"""The house: layers and purity by package, no circle of files, targets as peers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from orch_node.protocol.events import KINDS

import orchestrator

ROOT = Path(orchestrator.__file__).parent
TRAIN = ROOT.parent / "train"
LIB = TRAIN / "lib"
# From the top of the house to its ground: a package imports only what stands after it.
LAYERS = (
    "cli",
    "operations",
    "report",
    "provisioning",
    "targets",
    "runs",
    "load",
    "planning",
    "launchers",
    "stacks",
    "model",
    "state",
    "files",
    "paths",
    "screen",
    "errors",
)
# No clock, no files, no environment, no network.
PURE = ("model", "stacks", "launchers", "planning")
PURE_FILES = (
    "targets/ssh/plan",
    "targets/ssh/resolve",
    "targets/ssh/steps",
    "targets/ssh/container_steps",
    "targets/ssh/refuses",
    "targets/kubernetes/refuses",
    "targets/kubernetes/plan",
    "targets/kubernetes/resolve",
    "targets/kubernetes/checks",
    "targets/kubernetes/settings",
    "targets/kubernetes/status",
    "targets/kubernetes/outcome",
    "targets/kubernetes/log_lines",
    "targets/kubernetes/run_record",
    "targets/slurm/plan",
    "targets/slurm/resolve",
    "targets/slurm/refuses",
    "targets/slurm/script",
    "targets/slurm/settings",
    "targets/slurm/states",
    "targets/slurm/array",
    "report/smooth",
    "report/charts",
    "report/timeline",
)
EFFECTS = {
    "os",
    "sys",
    "io",
    "time",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "tempfile",
    "shutil",
    "requests",
    "fabric",
    "ansible_runner",
    "kubernetes",
}
# Who may name a target: its own folder, the registry, its options on the command line.
NAMES = {
    "ssh": ("targets/registry.py",),
    "kubernetes": ("targets/registry.py", "cli/kubernetes.py", "cli/main.py"),
    "slurm": ("targets/registry.py", "cli/slurm.py", "cli/main.py"),
}
FILES = sorted(ROOT.rglob("*.py"))
ON_NODES = sorted(LIB.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def offenders(paths: Iterable[Path], wrong: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """Return what is wrong in each file that has something wrong."""
    return {own(path, ROOT.parent): names for path in paths if (names := wrong(path))}


def imported(path: Path) -> set[str]:
    """Every name that the file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def own(path: Path, top: Path = ROOT) -> str:
    return path.relative_to(top).as_posix()


def room(name: str) -> str | None:
    """The package or file right below orchestrator/ that an import names."""
    first, *rest = name.split(".")
    return rest[0] if first == "orchestrator" and rest and rest[0] in LAYERS else None


def imports_of_upper_layers(path: Path) -> set[str]:
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if here == "__init__":
        return set()
    lowest = LAYERS.index(here)
    return {name for name in imported(path) if (at := room(name)) and LAYERS.index(at) < lowest}


def test_each_package_has_a_layer() -> None:
    packages = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES}
    assert packages - {"__init__"} == set(LAYERS)


def test_imports_go_down_the_layers() -> None:
    assert offenders(FILES, imports_of_upper_layers) == {}


def pure_files() -> list[Path]:
    rooms = [path for name in PURE for path in sorted((ROOT / name).rglob("*.py"))]
    manifests = sorted((ROOT / "targets/kubernetes/manifests").glob("*.py"))
    return [*rooms, *manifests, *(ROOT / f"{name}.py" for name in PURE_FILES)]


def effects(path: Path) -> set[str]:
    names = imported(path)
    return {name.partition(".")[0] for name in names} & EFFECTS | names & {"pathlib.Path"}


def test_what_decides_has_no_effects() -> None:
    assert offenders(pure_files(), effects) == {}


def modules(top: Path) -> dict[str, Path]:
    """Importable name -> file, as seen from the folder `top`."""
    found = {}
    for path in sorted(top.rglob("*.py")):
        name = ".".join(path.relative_to(top).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def files_named(path: Path, known: dict[str, Path]) -> set[str]:
    """A file's imports; `from package import file` means the file, not the package itself."""
    names = {name for name in imported(path) if name in known}
    packages = {name.rpartition(".")[0] for name in names}
    return {name for name in names if name not in packages or takes_more(path, name, known)}


def takes_more(path: Path, package: str, known: dict[str, Path]) -> bool:
    """Whether something is imported from the package that is no file of it."""
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == package
        and any(f"{package}.{alias.name}" not in known for alias in node.names)
        for node in ast.walk(tree(path))
    )


@pytest.mark.parametrize("top", [ROOT.parent / "orchestrator", LIB], ids=["orchestrator", "lib"])
def test_no_circle_of_files(top: Path) -> None:
    known = {
        name: path for name, path in modules(top if top == LIB else ROOT.parent).items() if path.is_relative_to(top)
    }
    graph = {path: {known[name] for name in files_named(path, known)} - {path} for path in known.values()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(own(path, ROOT.parent) for path in error.args[1]))


def test_nothing_on_the_nodes_needs_orch() -> None:
    for path in TRAIN.rglob("*.py"):
        assert not any(name.startswith("orchestrator") for name in imported(path)), path


def test_what_runs_on_nodes_needs_nothing_but_torch() -> None:
    """orch_node is imported in a user's process, before the user's script."""
    allowed = {*sys.stdlib_module_names, "orch_node", "torch", "transformers"}
    known = {"oneccl_bindings_for_pytorch", "torch_ccl"}
    for path in (LIB / "orch_node").rglob("*.py"):
        tops = {name.partition(".")[0] for name in imported(path)}
        assert tops <= allowed | known, path


def test_of_ours_only_two_names_can_be_imported() -> None:
    there = {path.name for path in LIB.iterdir() if path.name != "__pycache__"}
    assert there == {"orch_node", "orch_training"}


def foreign_targets(path: Path) -> list[str]:
    """Return the targets that the file must not name."""
    return [
        target
        for target, allowed in NAMES.items()
        if not own(path).startswith(f"targets/{target}/") and own(path) not in allowed
    ]


def imports_of_targets(path: Path) -> set[str]:
    packages = tuple(f"orchestrator.targets.{target}" for target in foreign_targets(path))
    return {name for name in imported(path) if name.startswith(packages)}


def test_targets_are_peers() -> None:
    assert offenders(FILES, imports_of_targets) == {}


# What a target's names hold, as words of identifiers.
WORDS = {"kubernetes": ("kube", "k8s", "pod_", "_pod"), "slurm": ("slurm", "sbatch")}


def identifiers(path: Path) -> set[str]:
    """Every name that the file defines or uses."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        for field in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, field, None)
            names |= {value} if isinstance(value, str) else set()
    return names


def words_of_targets(path: Path) -> set[str]:
    terms = [word for target in foreign_targets(path) for word in WORDS.get(target, ())]
    return {name for name in identifiers(path) if any(word in name.lower() for word in terms)}


def test_no_name_outside_a_target_is_one_of_its_words() -> None:
    assert offenders(FILES, words_of_targets) == {}


# The protocol alone knows how events are called, and that they are JSON.
PROTOCOL = LIB / "orch_node" / "protocol"
# Words of everyday: also states of runs, pods and tasks, and keys of what --json prints.
EVERYDAY = {"node", "progress", "result", "failed", "refused", "waiting", "ended"}
EVENT_NAMES = {*KINDS} - EVERYDAY
ANSIBLES = "provisioning/playbook.py"  # its events are dicts, with a key of this name
OUTSIDE = sorted(path for path in [*FILES, *ON_NODES] if not path.is_relative_to(PROTOCOL))


def texts(node: ast.AST | None) -> set[str]:
    """String literals in an operand: `"a"`, `("a", "b")`."""
    parts = ast.walk(node) if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return {one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def keys_and_comparisons(path: Path) -> set[str]:
    """Texts that the file compares with, looks up by, or has as keys."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Compare):
            found |= {text for one in (node.left, *node.comparators) for text in texts(one)}
        elif isinstance(node, ast.Subscript):
            found |= texts(node.slice)
        elif isinstance(node, ast.Dict):
            found |= {text for key in node.keys for text in texts(key)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looks_up = node.func.attr in ("get", "pop", "setdefault")
            found |= texts(node.args[0]) if looks_up and node.args else set()
    return found


def untyped_events(path: Path) -> set[str]:
    ansible = path.is_relative_to(ROOT) and own(path) == ANSIBLES
    return keys_and_comparisons(path) & (EVENT_NAMES | (set() if ansible else {"event"}))


def test_events_are_typed_outside_of_the_protocol() -> None:
    assert offenders(OUTSIDE, untyped_events) == {}
