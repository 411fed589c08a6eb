"""Defaults of options from ORCH_INVENTORY and from [tool.orch] of a pyproject.toml."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import make_app
from orchestrator.errors import OrchError
from tests.support.node_responses import make_node_record, write_records
from tests.support.recorded import make_run

TABLE = """[tool.orch]
inventory = "lab"
nodes = 2
ppn = 1
max-restarts = 3
with = ["torch"]
env = ["A=1"]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a git repository with an inventory of three nodes, and a script in a folder of it."""
    folder = tmp_path_factory.mktemp("defaults")
    for name in (".git", "inventory/lab", "tools"):
        (folder / name).mkdir(parents=True)
    (folder / "tools/train.py").write_text("import torch\n")
    return folder


@pytest.fixture
def project(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the repository with the table; the current folder is the script's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(repository / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(repository / "cache"))
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    monkeypatch.chdir(repository / "tools")
    records = {f"host{i}": make_node_record(i) for i in range(3)}
    hosts = "".join(f"    {name}:\n" for name in records)
    (repository / "inventory/lab/hosts.yml").write_text(f"all:\n  hosts:\n{hosts}")
    write_records(repository / "inventory/lab", records)
    (repository / "pyproject.toml").write_text(TABLE)
    return repository


def orch(*arguments: str) -> str:
    """Return the output of a command.

    Raises:
        OrchError: as the command.
    """
    result = CliRunner().invoke(make_app(arguments[0]), arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def decisions(*options: str) -> dict[str, str]:
    """Return the decisions of a plan by their topic."""
    text = orch("train", "train.py", "--project", "none", *options, "--dry-run", "--json")
    topics: dict[str, list[str]] = {}
    for entry in json.loads(text[text.index("{") :])["decisions"]:
        topics.setdefault(entry["topic"], []).append(f"{entry['value']} ({entry['reason']})")
    return {topic: "; ".join(lines) for topic, lines in topics.items()}


def test_table_sets_defaults_in_a_subfolder_and_the_command_line_replaces_them(project: Path) -> None:
    result = decisions()
    assert result["nodes"].startswith("host0, host1 (")
    assert result["ranks"].startswith("2 (")
    assert result["environment"] == "A=1 (--env)"
    options = "--with torch, --env A=1, --inventory ../inventory/lab, --nodes 2, --ppn 1, --max-restarts 3"
    assert result["defaults"] == f"{options} ([tool.orch] of ../pyproject.toml)"
    result = decisions("--nodes", "1", "--env", "B=2")
    assert result["nodes"].startswith("host0 (")
    assert result["environment"] == "B=2 (--env)"
    assert "--nodes" not in result["defaults"]


def test_defaults_of_other_hosts_are_not_used(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = decisions("--inventory", "local")
    assert "cluster 'local'" in result["nodes"]
    assert "--nodes" not in result["defaults"]
    assert "--max-restarts 3" in result["defaults"]
    monkeypatch.setenv("ORCH_INVENTORY", "local")
    assert decisions()["nodes"] == result["nodes"]


def test_environment_is_named_and_replaces_the_table(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_INVENTORY", "../inventory/lab")
    (project / "pyproject.toml").write_text('[tool.orch]\ninventory = "nosuch"\n')
    assert decisions()["defaults"] == "--inventory ../inventory/lab (ORCH_INVENTORY)"
    assert "host2" in orch("nodes")
    assert "host2" not in orch("nodes", "local")


def test_run_of_this_machine_is_found_by_its_name(project: Path, tmp_path: Path) -> None:
    # Only [tool.orch] counts for commands that use no packages.
    (project / "pyproject.toml").write_text('[project]\ndependencies = ["torch"]\nrequires-python = "3.10"\n')
    assert make_run(tmp_path, name="mine").name in orch("runs", "show", "mine", "--runs-dir", str(tmp_path))


def test_folder_of_runs_in_the_table_is_that_of_all_commands(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").write_text('[tool.orch]\ninventory = "nosuch"\nruns-dir = "myruns"\n')
    for base, name in (("myruns", "first"), ("myruns", "second"), ("others", "third")):
        make_run(project / base, f"{name}-20260101-000000-abcd", name=name)
    assert "first-2026" in orch("runs")
    assert "second-2026" in orch("runs", "compare", "first")
    assert "first-2026" in orch("runs", "show", "first")
    other_base = str(project / "others")
    with pytest.raises(OrchError) as exc_info:
        orch("runs", "compare", "third")
    assert "[tool.orch] of ../pyproject.toml sets --runs-dir" in exc_info.value.hint
    assert "third-2026" in orch("runs", "--runs-dir", other_base, "show", "third"), "the option wins"
    monkeypatch.setenv("ORCH_RUNS_DIR", other_base)
    assert "third-2026" in orch("runs", "show", "third"), "the environment wins"


def test_target_on_the_command_line_replaces_the_inventory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_INVENTORY", "lab")
    options = ["--on", "k8s", "--nodes", "2", "--image", "orch:current", "--project", "none"]
    assert decisions(*options)["defaults"] == "--env A=1, --max-restarts 3 ([tool.orch] of ../pyproject.toml)"
    assert "note: --with ([tool.orch] of ../pyproject.toml) has no effect with --on k8s" in orch(
        "train", "train.py", *options, "--dry-run"
    )


def test_wrong_table_is_an_error_that_names_the_file(project: Path) -> None:
    for table, message, hint in (
        ("max_restarts = 1", "unknown key 'max_restarts'", "'max-restarts'"),
        ('ppn = "2"', "ppn is '2': expected a valid integer", "--ppn"),  # text
        ('precision = "fp8"', "fp8", "[tool.orch] of ../pyproject.toml sets --precision"),  # wrong value
    ):
        (project / "pyproject.toml").write_text(f"[tool.orch]\n{table}\n")
        with pytest.raises(OrchError) as exc_info:
            orch("train", "train.py", "--dry-run")
        assert message in exc_info.value.message
        assert hint in exc_info.value.hint
        assert "Usage" in orch("train", "--help")


def test_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").symlink_to("/proc/self/mem")  # a file that even root cannot read
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OrchError, match=r"pyproject\.toml cannot be read: Input/output error"):
        orch("train", "train.py", "--dry-run")


def test_table_of_another_user_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("orchestrator.load.inputs")  # the function of this name hides it in the package
    monkeypatch.setattr(module, "other_owner", lambda path: "mallory")
    with pytest.raises(OrchError, match="belongs to another user"):
        orch("train", "train.py", "--dry-run")
