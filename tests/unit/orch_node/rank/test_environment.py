"""The environment of a rank, and of a user's command: variables of users replace those of orch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node import program
from orch_node.protocol import layout as layouts
from orch_node.protocol.container import ContainerSpec, EnvFileError, RankRequest, render
from orch_node.protocol.environment import OPENMP, interface_variables, planned_variables
from orch_node.protocol.layout import NodeEntry, RankEntry, RunLayout
from orch_node.rank import container
from orch_node.rank import environment as rank_variables
from orch_node.rank.main import checked_variables
from orch_node.standalone import facts

from tests.support.layouts import make_layout

LIBM = ("/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6")
PRINT_MAPS = "print(open('/proc/self/maps').read())"
SETVARS = """
echo noise; echo more >&2
export CCL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)" TEXT="two
lines = 1"
export LD_LIBRARY_PATH="$CCL_ROOT/lib:${LD_LIBRARY_PATH:-}"
[ -z "${MISLEADING:-}" ] || export CCL_ROOT=misled
"""
SPEC = ContainerSpec(image="team/torch:3", start="rank", python="python3", preload=(), processes={}, options=())
ORCH_VARIABLES = {**OPENMP, "CCL_WORKER_COUNT": "1"}
VALUES = {"KMP_BLOCKTIME": "200", "GLOO_SOCKET_IFNAME": "lo", "CCL_WORKER_COUNT": "4"}


def make_run(folder: Path, **variables: str) -> tuple[RunLayout, RankEntry]:
    """Write the files of a run that has variables for its node and its rank."""
    node = NodeEntry(name="node0", host="", torch=None, address=None, interface=None, env=interface_variables("eth0"))
    layout = make_layout("node0", nodes=(node,))
    ranks = tuple(replace(rank, env={"CCL_WORKER_COUNT": "2"}) for rank in layout.ranks)
    layout = replace(layout, ranks=ranks)
    (folder / "layout.json").write_text(layouts.render(layout))
    (folder / "env.json").write_text(json.dumps({"MASTER_PORT": "1", **ORCH_VARIABLES, **variables}))
    return layout, layout.ranks[0]


def test_users_variables_replace_those_of_orch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_EVENTS_FD", "3")
    for variables in (planned_variables({}, VALUES), planned_variables(VALUES, {})):  # of the request, of the recipe
        layout, placement = make_run(tmp_path, **variables)
        result = rank_variables.rank_environment(tmp_path, layout, placement)
        assert {name: result[name] for name in VALUES} == VALUES
        assert result["FI_TCP_IFACE"] == "eth0"
    for name, value in result.items():
        monkeypatch.setenv(name, value)
    planned = json.loads((tmp_path / "env.json").read_text())
    expected = checked_variables({**planned, **layout.nodes[0].env, **placement.env}, planned)
    assert {name: result[name] for name in expected if name != "MASTER_PORT"} | {"MASTER_PORT": "1"} == expected


def test_rank_in_a_container_inherits_only_launcher_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMI_FD", "ACCELERATE_USE_CPU", "ORCH_ATTEMPT", "ORCH_EVENTS_FD"):
        monkeypatch.setenv(name, "2")
    layout, placement = make_run(tmp_path)
    result = rank_variables.training_environment(tmp_path, layout, placement, SPEC)
    assert result["ACCELERATE_USE_CPU"] == result["ORCH_ATTEMPT"] == "2"
    assert result.keys().isdisjoint({"PMI_FD", "PATH"})


def test_setvars_is_sourced_in_a_clean_shell(tmp_path: Path) -> None:
    folder = tmp_path / "two words" / "env"
    folder.mkdir(parents=True)
    (folder / "setvars.sh").write_text(SETVARS)
    environ = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/old", "MISLEADING": "1"}
    assert rank_variables.sourced_variables(str(folder / "setvars.sh"), environ, "") == {
        "CCL_ROOT": str(folder.parent),
        "TEXT": "two\nlines = 1",
        "LD_LIBRARY_PATH": f"{folder.parent}/lib:/old",
    }


def run_python(code: str, environment: dict[str, str]) -> str:
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    return process.stdout.decode(errors="replace")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a copy of libm in a folder with a space, a dollar sign and non-ASCII letters."""
    target = tmp_path / "two words $LIB ünïcödé" / "libm.so"
    target.parent.mkdir()
    shutil.copy(next(path for path in LIBM if os.path.exists(path)), target)
    return target


def test_malloc_settings_of_the_user_take_precedence() -> None:
    for environment in (
        {rank_variables.TUNABLES: ""},
        {"MALLOC_ARENA_MAX": "2"},
        {rank_variables.PRELOAD: "/venv/lib/libiomp5.so:/usr/lib/libtcmalloc_minimal.so.4"},
    ):
        assert rank_variables.with_kept_heap(environment) == environment
    preloaded = {rank_variables.PRELOAD: "/malloc/libiomp5.so"}
    assert rank_variables.with_kept_heap(preloaded) == {**preloaded, rank_variables.TUNABLES: rank_variables.KEEP_HEAP}


def test_preload_loads_a_library_whose_path_the_loader_would_split(library: Path) -> None:
    environment = {**os.environ, rank_variables.PRELOAD: str(library)}
    assert str(library) not in run_python(PRINT_MAPS, environment), "the loader needs no link"
    assert str(library) in run_python(PRINT_MAPS, rank_variables.with_loadable_preload(environment))
    without_need = {rank_variables.PRELOAD: "/lib/a.so:/lib/b.so:/no such/c.so:libd.so libe.so"}
    assert rank_variables.with_loadable_preload(without_need) == without_need


def test_preload_link_is_shared_and_of_the_user(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = rank_variables.link_to(str(library))
    assert link.startswith("/tmp/orch-preload-")
    assert rank_variables.link_to(str(library)) == link
    assert os.readlink(link) == str(library)
    monkeypatch.setattr(os, "readlink", lambda path: "/another")
    assert rank_variables.link_to(str(library)) == str(library)


def test_cache_of_the_user_takes_precedence_over_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "ROOT", tmp_path)
    (tmp_path / "hub/models--me--tiny").mkdir(parents=True)
    assert rank_variables.with_synced_hub({"HF_HOME": ""})["HF_HUB_CACHE"] == str(tmp_path / "hub")
    assert rank_variables.with_synced_hub({"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"
    for variable in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"):
        assert rank_variables.with_synced_hub({variable: "/own"}) == {variable: "/own"}


PLACEMENT = make_layout("node0").ranks[0]


def test_file_of_variables_replaces_those_of_orch_and_the_request_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "libraries", lambda prefix: {"libiomp5.so": "/lib/libiomp5.so"})
    environment = {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_PORT": "1", **planned_variables({}, {"KMP_BLOCKTIME": "3"})}
    file_variables = {"KMP_AFFINITY": "none", "KMP_BLOCKTIME": "2", "GLOO_SOCKET_IFNAME": "lo"}
    order = RankRequest(PLACEMENT, environment, (), "", "", preload=("libiomp5.so",), given=file_variables)
    result = container.rank_environment(order, events=3)
    expected = {"KMP_AFFINITY": "none", "KMP_BLOCKTIME": "3", "GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": "1"}
    assert {name: result[name] for name in expected} == expected


def test_file_of_variables_cannot_set_what_orch_sets_for_each_rank(tmp_path: Path) -> None:
    file = tmp_path / "variables.env"
    file.write_text("RANK=7\n")
    with pytest.raises(EnvFileError, match="sets RANK: orch or the launcher sets"):
        container.start(tmp_path, replace(SPEC, env_file=str(file)), RankRequest(PLACEMENT, {}, (), "", ""))


ENTRY = NodeEntry("node1", "", None, None, interface=None, env={"GLOO_SOCKET_IFNAME": "eth7", "A": "node"})


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the folder of a run with a node and a working directory."""
    (tmp_path / "project").mkdir()
    run_layout = make_layout("node1", nodes=(ENTRY,), working_directory=str(tmp_path / "project"))
    (tmp_path / "layout.json").write_text(layouts.render(run_layout))
    (tmp_path / "env.json").write_text(json.dumps({"MASTER_PORT": "1", "A": "run", "B": "two\nlines"}))
    return tmp_path


def run_command(run_dir: Path, *command: str) -> subprocess.CompletedProcess[str]:
    argv = program.command("exec", f"--run={run_dir}", "--node=node1", "--", *command)
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "ORCH_RUN_DIR": "/another"}
    # The command ends with its standard input, which stays open.
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(argv, env=environment, text=True, **pipes) as process:
        output, errors = process.stdout.read(), process.stderr.read()
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


def test_command_has_the_variables_of_the_run_and_of_its_node(run_dir: Path) -> None:
    show = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"
    folder, environment = json.loads(run_command(run_dir, "python", "-c", show).stdout)
    assert folder == str(run_dir / "project")
    assert (environment["A"], environment["B"]) == ("node", "two\nlines")
    assert environment["GLOO_SOCKET_IFNAME"] == "eth7"
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"
    assert "ORCH_RUN_DIR" not in environment, "the command would be ended with the run"


def test_command_of_a_run_in_containers_is_refused(run_dir: Path) -> None:
    (run_dir / "container.json").write_text(render(SPEC))
    result = run_command(run_dir, "echo", "started")
    assert result.returncode == 1
    assert "docker exec" in result.stderr
    assert "started" not in result.stdout
