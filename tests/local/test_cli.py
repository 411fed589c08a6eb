"""Run the command line itself: JSON for programs, completion, listings, stacks, and the preparation of data."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.load.definitions import stack_names
from tests.conftest import run_orch_in
from tests.local.runs import Orch, Process, expect_exit, settings_options, write_script
from tests.support.environments import make_environment
from tests.support.files import write_program
from tests.support.recorded import make_run

# Programs rely on these keys. A key may be added; removing or renaming one needs a new schema.
SCHEMA = 1
LISTING_KEYS = {
    "recipes": {"name", "summary", "presets", "script"},
    "stacks": {"name", "summary", "python", "torch", "backends"},
    "runs": {"id", "state", "recipe", "ranks", "backend", "precision", "created", "folder"},
}
PLAN_KEYS = {"schema", "kind", "run_id", "run_dir", "decisions", "layout", "files", "command"}
RANK_KEYS = {"rank", "node", "local_rank", "local_world_size", "cpus", "threads"}
RUN_KEYS = {"schema", "kind", "run_id", "folder", "state", "recipe", "ranks", "backend", "precision", "seconds"}
OUTCOME_KEYS = {"failure", "problem", "result", "decisions", "exit_code"}
FAILURE_KEYS = {"rank", "node", "code", "signal", "text"}


def parse(process: Process) -> Any:
    return json.loads(process.stdout)


@pytest.fixture(scope="module")
def orch_with_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Orch, dict[str, Any]]:
    """Return orch in a folder with a finished run, and the run's report."""
    folder = tmp_path_factory.mktemp("finished")
    orch = functools.partial(run_orch_in, folder)
    script = write_script(folder, "print('line one')\nprint('line two')\n")
    return orch, parse(expect_exit(orch("train", script, "--ppn", "1", "--json")))


def test_listings_have_the_keys_of_their_schema(orch_with_run: tuple[Orch, dict[str, Any]]) -> None:
    orch, _ = orch_with_run
    for kind, keys in LISTING_KEYS.items():
        value = parse(orch(kind, "--json"))
        assert (value["schema"], value["kind"]) == (SCHEMA, kind)
        assert value[kind], "the list is not empty"
        assert all(keys <= row.keys() for row in value[kind])


def test_finished_run_is_shown_as_train_reported_it(orch_with_run: tuple[Orch, dict[str, Any]]) -> None:
    orch, report = orch_with_run
    assert report.keys() >= RUN_KEYS | OUTCOME_KEYS
    assert (report["schema"], report["kind"], report["state"]) == (SCHEMA, "run", "done")
    assert parse(orch("runs", "show", "last", "--json")) == report
    assert orch("runs", "show", "last").stdout.count("state: ") == 1


def test_failed_run_reports_its_failure(orch: Orch, tmp_path: Path) -> None:
    value = parse(expect_exit(orch("train", write_script(tmp_path, "raise SystemExit(5)"), "--ppn", "1", "--json"), 1))
    assert (value["state"], value["exit_code"]) == ("failed", 1)
    assert value["failure"]["code"] == 5
    assert value["failure"].keys() >= FAILURE_KEYS


def test_plan_has_the_keys_of_its_schema(orch: Orch) -> None:
    value = parse(orch("train", "bert-qa", "--stop-on-nan", "--dry-run", "--json"))
    assert value.keys() >= PLAN_KEYS
    assert (value["schema"], value["kind"]) == (SCHEMA, "plan")
    assert value["layout"][0].keys() >= RANK_KEYS
    assert any('"ORCH_STOP_ON_NAN": "1"' in content for content in value["files"].values())


def test_logs_name_the_rank_and_node_of_each_line(orch_with_run: tuple[Orch, dict[str, Any]]) -> None:
    orch, _ = orch_with_run
    assert orch("logs").stdout == "[0 node0] line one\n[0 node0] line two\n"
    assert orch("logs", "last", "--rank", "0").stdout.count("\n") == 2
    assert "ranks 0 to 0" in expect_exit(orch("logs", "last", "--rank", "4"), 2).stderr


def complete(line: str, position: int, cwd: Path | None = None) -> Process:
    """Complete a command line as bash does."""
    environment = os.environ | {"_ORCH_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(position)}
    orch = Path(sys.executable).with_name("orch")
    return subprocess.run([orch], env=environment, cwd=cwd, capture_output=True, text=True)


def test_shell_completion_completes_and_is_silent_when_it_cannot(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for line, position, expected in (
        ("orch train x --stack curr", 4, "current"),
        ("orch train bert-qa --preset d", 4, "demo"),
        (f"orch logs --runs-dir {tmp_path} 2026", 4, run.name),
        ("orch logs --no-such ", 3, None),
    ):
        process = complete(line, position)
        assert (process.stdout.split(), process.stderr) == ([expected] * bool(expected), "")
    for table, expected in ((f'runs-dir = "{tmp_path}"', run.name), ("no-such = 1", "")):
        (tmp_path / "pyproject.toml").write_text(f"[tool.orch]\n{table}\n")
        for line, position in (("orch logs 2026", 2), ("orch runs show 2026", 3), ("orch runs compare 2026", 3)):
            process = complete(line, position, tmp_path)
            assert (process.stdout.strip(), process.stderr) == (expected, "")


RAISE_IN_ORCH = """
import orchestrator.cli.main as program
program.make_app = lambda name: {}["\x1b no such key"]
program.main()
"""


def test_bug_of_orch_leaves_a_log_and_exit_code_3() -> None:
    command = [sys.executable, "-c", RAISE_IN_ORCH]
    process = expect_exit(subprocess.run(command, capture_output=True, text=True, timeout=60), 3)
    path = Path(process.stderr.strip().rpartition(" ")[2])
    assert "Traceback" in path.read_text()
    assert "Traceback" not in process.stderr
    path.unlink()


def test_ctrl_c_while_orch_imports_its_modules_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    orch = Path(sys.executable).with_name("orch")
    process = subprocess.run([orch, "runs"], env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True)
    assert (process.returncode, process.stdout, process.stderr) == (130, b"", b"")


# Stacks, with environments made of real folders.


def test_stacks_are_listed_and_shown_with_their_requirements(orch: Orch) -> None:
    lines = {line.split()[0]: line for line in expect_exit(orch("stacks")).stdout.splitlines()}
    assert set(lines) >= set(stack_names())
    assert "needs Intel's index; end of life since 2025-12-31" in lines["intel-2.7"]
    value = parse(orch("stacks", "show", "torch-ccl-1.10", "--json"))
    assert value["stack"]["bindings"]["module"] == "torch_ccl"
    assert value["stack"]["sources"]["oneccl-bind-pt"]
    gloo = orch("stacks", "requirements", "intel-2.7", "--backend", "gloo").stdout
    assert "oneccl" not in gloo
    assert "torch==2.7.0\n" in gloo


def test_check_names_every_mismatch(orch: Orch, tmp_path: Path) -> None:
    site = make_environment(tmp_path / "wrong")
    versions = ("torch-2.13.0+cpu", "intel_extension_for_pytorch-2.8.0", "oneccl_bind_pt-2.7.0+xpu")
    for name in (*versions, "transformers-5.23.0"):
        (site / f"{name}.dist-info").mkdir()
    python = f"{tmp_path}/wrong/bin/python"
    process = expect_exit(orch("stacks", "check", "--python", python), 1)
    assert f"{python}: 3 mismatches (looked at as stack 'current')" in process.stdout
    assert "IPEX 2.8.0 with torch 2.13.0+cpu" in process.stdout
    assert "oneccl_bind_pt 2.7.0+xpu is the wheel for Intel GPUs" in process.stdout
    assert process.stdout.count("  hint: ") == 3
    for output in ("", r"\377", "1", "{}"):
        write_program(tmp_path / "program", f"#!/bin/sh\nprintf '{output}'\n")
        refused = expect_exit(orch("stacks", "check", "--python", "./program"), 2)
        assert "--python ./program: cannot inspect its environment: exit code 0" in refused.stderr


def test_check_compares_the_nodes_of_an_inventory(orch: Orch) -> None:
    value = parse(orch("stacks", "check", "--inventory", "local", "--json"))
    assert value["nodes"]
    assert all(node["stack"] == "current" for node in value["nodes"])


# Data.


TEXT = "One day it rained. Nobody went out.\nThe cat slept.\n\nBread is baked. It smells good.\n"
PREPARE = ("data", "prepare", "text")
PREPARE_OPTIONS = ("--out", "data", "--set", "shards=2", "--set", "lengths=32:4")


def test_all_texts_of_a_folder_become_data_for_a_training(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in "ab":
        (tmp_path / "texts" / f"{name}.txt").write_text(TEXT * 15)
    process = orch(*PREPARE, "texts", *PREPARE_OPTIONS, "--ppn", "2", "--json", timeout=200, warm=False)
    result = json.loads(expect_exit(process).stdout)["result"]
    assert result["data_dir"] == str(tmp_path / "data")
    assert result["rows_seq32"] > 50
    assert len(list((tmp_path / "data" / "seq32").iterdir())) == 2
    prepared = json.loads((tmp_path / "data" / "settings.json").read_text())
    assert [name for name in prepared if name.startswith("file ")] == ["file 1 (a.txt)", "file 2 (b.txt)"]
    settings = settings_options(data_dir=tmp_path / "data", phase=1, max_seq_length=32, max_steps=2)
    expect_exit(orch("train", "bert-pretrain", "--ppn", "1", "--precision", "fp32", *settings, timeout=200))
