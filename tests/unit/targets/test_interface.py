"""Check that every target implements the whole interface."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.runs import store
from orchestrator.targets import registry
from orchestrator.targets.interface import RunHandle, Target
from tests.support.recorded import make_run

RECORDED = {
    "ssh": {},
    "kubernetes": {"target": "kubernetes", "location": {"job": "orch-x"}},
    "pbs": {"target": "pbs", "location": {"name": "orch-x", "job": "12.server"}},
    "slurm": {"target": "slurm", "location": {"name": "orch-x", "job": "12"}},
}
FLAG_VALUES = {"ssh": None, **{entry.name: flag_value for flag_value, entry in registry.entries().items()}}


def methods(kind: type) -> dict[str, Callable[..., object]]:
    return {
        name: function
        for name, function in vars(kind).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }


def parameters(act: Callable[..., object]) -> list[tuple[str, object, str]]:
    signature_parameters = inspect.signature(act).parameters.values()
    return [(parameter.name, parameter.kind, str(parameter.annotation)) for parameter in signature_parameters]


def test_target_implements_the_interface() -> None:
    for name in RECORDED:
        target = registry.find_target(FLAG_VALUES[name])
        assert target.name == name
        assert isinstance(target, Target)
        assert isinstance(target.refuses, dict)


@pytest.mark.parametrize("name", RECORDED)
def test_handle_implements_the_interface(name: str, tmp_path: Path) -> None:
    run = store.load(make_run(tmp_path, **RECORDED[name]))
    handle = registry.target_of(run.record).handle(run.record, run.folder)
    assert (handle.record, handle.folder) == (run.record, run.folder)
    handle.notify("nobody listens")
    for method, expected in methods(RunHandle).items():
        assert parameters(getattr(type(handle), method)) == parameters(expected), method


def test_target_is_found_by_a_flag_a_record_and_an_inventory(tmp_path: Path) -> None:
    assert registry.find_target(None).name == "ssh"
    assert registry.find_target("k8s").name == "kubernetes"
    for inventory, name in (
        (None, "ssh"),
        ("local", "ssh"),
        ("inventory/prod", "ssh"),
        ("k8s-lab", "ssh"),
        ("k8s", "kubernetes"),
        ("k8s:team", "kubernetes"),
        ("slurm", "slurm"),
    ):
        assert registry.target_at(inventory).name == name
    with pytest.raises(RequestError, match="--on k9s") as caught:
        registry.find_target("k9s")
    assert caught.value.hint == "Did you mean 'k8s'?"
    record = store.load(make_run(tmp_path, target="moon", location={"crater": 1})).record
    with pytest.raises(ExecuteError, match="runs on moon"):
        registry.target_of(record)


def test_target_is_not_imported_before_it_is_needed() -> None:
    """Import only the requested target: `orch --help` must be fast, and clients are large."""
    for name in RECORDED:
        text = (
            "import sys\nfrom orchestrator.cli import main\nfrom orchestrator.targets import registry\n"
            f"registry.find_target({FLAG_VALUES[name]!r})\n"
            "print(*sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        loaded = set(done.stdout.split())
        targets = {"ssh": registry.SSH_TARGET, **{entry.name: entry.target for entry in registry.entries().values()}}
        modules = {target: path.partition(":")[0] for target, path in targets.items()}
        assert loaded & set(modules.values()) == {modules[name]}
        assert not loaded & {"kubernetes", "fabric", "paramiko"}
