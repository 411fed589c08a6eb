"""Check that the target of a run is found without importing the other targets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.runs import store
from orchestrator.targets import registry
from tests.support.recorded import make_run


def test_target_is_found_by_a_flag_a_record_and_an_inventory(tmp_path: Path) -> None:
    assert registry.find_target(None).name == "ssh"
    assert registry.find_target("k8s").name == "kubernetes"
    for inventory, name in {None: "ssh", "k8s-lab": "ssh", "k8s:team": "kubernetes", "slurm": "slurm"}.items():
        assert registry.target_at(inventory).name == name
    with pytest.raises(RequestError, match="--on k9s") as caught:
        registry.find_target("k9s")
    assert caught.value.hint == "Did you mean 'k8s'?"
    record = store.load(make_run(tmp_path, target="moon", location={"crater": 1})).record
    with pytest.raises(ExecuteError, match="runs on moon"):
        registry.target_of(record)


# Find each target in a child process of one that has imported the command line.
FIND_TARGETS = """
import os, sys
from orchestrator.cli import main
from orchestrator.targets import registry
for value in (None, *registry.entries()):
    if not os.fork():
        registry.find_target(value)
        print(value, *sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""


def test_target_is_not_imported_before_it_is_needed() -> None:
    """Import only the requested target: `orch --help` must be fast, and clients are large."""
    done = subprocess.run([sys.executable, "-c", FIND_TARGETS], capture_output=True, text=True, check=True)
    targets = {"None": registry.SSH_TARGET, **{name: entry.target for name, entry in registry.entries().items()}}
    modules = {name: path.partition(":")[0] for name, path in targets.items()}
    loaded = {name: set(names) for name, *names in map(str.split, done.stdout.splitlines())}
    assert {name: loaded[name] & {*modules.values()} for name in loaded} == {name: {modules[name]} for name in modules}
    assert not set().union(*loaded.values()) & {"kubernetes", "fabric", "paramiko"}
