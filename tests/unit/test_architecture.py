"""The pure modules stay pure, and imports point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import orchestrator

ROOT = Path(orchestrator.__file__).parent
PURE = [
    "errors", "names", "command", "cluster", "stack", "backend", "matrix", "environment",
    "mismatch", "signatures", "wheels", "recipe", "layout", "network", "launchers/__init__",
    "launchers/job", "launchers/mpirun", "launchers/intel_mpi", "launchers/mpich",
    "launchers/open_mpi", "launchers/torchrun", "launchers/accelerate",
    "launchers/accelerate_config", "launchers/mpirun_accelerate", "rank_files", "plan", "card",
    "docker", "accelerate_file", "train_request", "choices", "choose_launch", "plan_steps",
    "plan_docker", "plan_train", "report/scales", "report/charts", "report/timeline", "plan_kube",
    "kube/quantity", "kube/names", "kube/settings", "kube/job", "kube/pods", "kube/card",
    "kube/status", "kube/lines", "kube/outcome", "kube/setup", "launchers/pytorchjob",
    "launchers/mpijob", "launchers/trainjob", "launchers/kubernetes_jobs", "kube/place",
    "kube/files", "kube_choices", "image", "kube/reader", "kube_checks",
]  # fmt: skip
EFFECTS = {
    "os", "sys", "io", "time", "random", "secrets", "socket", "subprocess", "tempfile", "shutil",
    "requests", "fabric", "ansible_runner", "kubernetes",
}  # fmt: skip
# Who may import whom: a module imports only what stands before it.
ORDER = [
    "errors", "names", "command", "cluster", "backend", "stack", "image", "matrix", "environment",
    "mismatch", "signatures", "wheels", "recipe", "layout", "network", "ssh_config", "kube",
    "launchers", "rank_files", "plan", "card", "docker", "accelerate_file", "train_request",
    "choices", "choose_launch", "plan_steps", "plan_docker", "choose_run", "plan_train",
    "kube_choices", "plan_kube", "kube_checks", "task_result", "probe", "preflight",
    "plan_provision", "share", "state", "digest", "wheelhouse", "load", "execute", "provenance",
    "runs", "measures", "collect", "mirror", "backends", "report", "operations", "cli",
]  # fmt: skip


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_nothing_with_effects(module: str) -> None:
    names = imported(ROOT / f"{module}.py")
    assert not {name.partition(".")[0] for name in names} & EFFECTS
    assert "pathlib.Path" not in names


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if own not in ORDER:
        pytest.fail(f"{own} has no place in the order of imports") if own != "__init__" else None
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "orchestrator" and len(parts) > 1 and parts[1] in ORDER:
            assert ORDER.index(parts[1]) <= ORDER.index(own), f"{own} imports {name}"


def test_nothing_on_the_nodes_needs_orch() -> None:
    for path in (ROOT.parent / "train").rglob("*.py"):
        assert not any(name.startswith("orchestrator") for name in imported(path)), path
