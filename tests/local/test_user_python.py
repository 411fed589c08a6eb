"""Train on a Python environment that the user already has on the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.runs import expect_exit, read_events
from tests.local.workspaces import Workspace
from tests.support.environments import make_environment

SCRIPT = """
import sys, torch, torch.distributed as dist
value = torch.ones(1)
dist.all_reduce(value)
functions = (torch.nn.functional.dropout, torch.nn.functional.scaled_dot_product_attention)
kernels = [getattr(function, "__globals__", {}).get("__name__") for function in functions]
print("RESULT", sys.prefix, dist.get_backend(), value.item(), *kernels, flush=True)
"""
KERNELS = "ccl 2.0 orch_kernels.dropout orch_kernels.attention"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with all packages of the stack but the bindings for ccl and their kernels."""
    folder = tmp_path_factory.mktemp("user") / "environment"
    make_environment(folder, without=["oneccl_bind", "orch_kernels"])
    return folder


@pytest.fixture
def own_folders(two_hosts: Workspace) -> Iterator[list[Path]]:
    """Yield a folder of each host, which the hosts see at one path."""
    folders = [host.folder / "root/environments" for host in two_hosts.lab.hosts]
    yield folders
    for folder in folders:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.mark.parametrize("options", [("--launcher", "mpirun"), ("--launcher", "torchrun", "--backend", "gloo")])
def test_ranks_on_hosts_use_the_environment(two_hosts: Workspace, environment: Path, options: tuple[str, ...]) -> None:
    cell = two_hosts.train_text(SCRIPT, *options, "--venv", str(environment))
    end = "gloo 2.0 torch.nn.functional None" if "gloo" in options else KERNELS
    assert [cell.printed("RESULT", rank) for rank in (0, 1)] == [f"{environment} {end}"] * 2
    decisions = read_events(Path(cell.report["folder"]), "decision")
    assert ["kernels: torch (the package orch_kernels" in event["text"] for event in decisions] == (
        [True] if "gloo" in options else []
    )
    command = ("python", "-c", "import sys; print(sys.prefix)")
    assert two_hosts.orch("exec", "last", "--gather", "--", *command).stdout == f"node[0-1]: {environment}\n"


def test_wrong_interpreters_are_refused_by_node(two_hosts: Workspace, own_folders: list[Path], tmp_path: Path) -> None:
    make_environment(tmp_path / "empty")
    make_environment(own_folders[0] / "one")
    for folder, version in zip(own_folders, ("1.0", "2.0"), strict=True):
        site = make_environment(folder / "different")
        for name in ("torch-2.13.0", f"einops-{version}"):
            (site / f"{name}.dist-info").mkdir()
    shared = f"{two_hosts.lab.root}/environments"
    cases = {
        f"{tmp_path}/empty": "node0: {}/bin/python has no torch.",
        f"{shared}/one": "{}/bin/python does not exist on node1.",
        f"{shared}/different": "{}/bin/python differs between nodes: einops is 1.0 on node0 and 2.0 on node1.",
    }
    (two_hosts.folder / "own.py").write_text(SCRIPT)
    for venv, message in cases.items():
        refused = two_hosts.orch("train", "own.py", *two_hosts.options, "--backend", "gloo", "--venv", venv)
        assert message.format(venv) in expect_exit(refused, 2).stderr
