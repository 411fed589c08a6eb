"""The command line itself: JSON for programs, completion, listings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.local.runs import Orch, expect_exit

# What programs rely on. A key may be added; taking one away or renaming it needs a new schema.
SCHEMA = 1
PINNED = {
    "recipes": (("recipes",), "recipes", {"name", "summary", "presets", "script"}),
    "stacks": (("stacks",), "stacks", {"name", "summary", "python", "torch", "backends"}),
    "runs": (("runs",), "runs", {"id", "state", "recipe", "ranks", "backend", "precision", "created", "folder"}),
}
PINNED_PLAN = {"schema", "kind", "run_id", "run_dir", "decisions", "layout", "files", "command"}
PINNED_PLACE = {"rank", "node", "local_rank", "local_world_size", "cpus", "threads"}
PINNED_RUN = {
    "schema",
    "kind",
    "run_id",
    "folder",
    "state",
    "recipe",
    "ranks",
    "backend",
    "precision",
    "seconds",
    "failure",
    "problem",
    "result",
    "decisions",
    "exit_code",
}


def parse(process: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(process.stdout)


@pytest.fixture
def finished(orch: Orch, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "ok.py").write_text("print('line one')\nprint('line two')\n")
    process = expect_exit(orch("train", "ok.py", "--ppn", "1", "--json"))
    return dict(parse(process))


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "train ok.py --ppn 9999 --dry-run",
        "stacks show current",
        "recipes --json",
        "runs",
        "report last",
        "nodes local",
        "k8s check",
    ],
)
def test_it_starts_by_itself_as_in_other_tests(orch: Orch, tmp_path: Path, words: str) -> None:
    (tmp_path / "ok.py").write_text("")
    warm, own = orch(*words.split()), orch(*words.split(), warm=False)
    said = (own.returncode, own.stdout, own.stderr)
    assert (warm.returncode, warm.stdout, warm.stderr) == said


@pytest.mark.parametrize("case", PINNED)
def test_listings(orch: Orch, finished: dict[str, Any], case: str) -> None:
    arguments, kind, keys = PINNED[case]
    value = parse(orch(*arguments, "--json"))
    assert (value["schema"], value["kind"]) == (SCHEMA, kind)
    assert value[kind], "there is something to list"
    assert all(keys <= row.keys() for row in value[kind])


def test_a_run(orch: Orch, finished: dict[str, Any]) -> None:
    assert finished.keys() >= PINNED_RUN
    assert (finished["schema"], finished["kind"], finished["state"]) == (SCHEMA, "run", "done")
    shown = parse(orch("runs", "show", "last", "--json"))
    assert shown == finished
    assert orch("runs", "show", "last").stdout.count("state: ") == 1


def test_a_failed_run(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise SystemExit(5)")
    process = expect_exit(orch("train", "bad.py", "--ppn", "1", "--json"), 1)
    value = parse(process)
    assert (value["state"], value["exit_code"]) == ("failed", 1)
    assert value["failure"]["code"] == 5
    assert value["failure"].keys() >= {"rank", "node", "code", "signal", "text"}


def test_a_plan(orch: Orch, tmp_path: Path) -> None:
    value = parse(orch("train", "bert-qa", "--dry-run", "--json"))
    assert value.keys() >= PINNED_PLAN
    assert (value["schema"], value["kind"]) == (SCHEMA, "plan")
    assert value["layout"][0].keys() >= PINNED_PLACE


def test_logs_carry_their_rank(orch: Orch, finished: dict[str, Any]) -> None:
    assert orch("runs", "logs").stdout == "[0 node0] line one\n[0 node0] line two\n"
    assert orch("runs", "logs", "last", "--rank", "0").stdout.count("\n") == 2
    wrong = expect_exit(orch("runs", "logs", "last", "--rank", "4"), 2)
    assert "ranks 0 to 0" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [("orch tr", 1, "train"), ("orch train bert-q", 2, "bert-qa"), ("orch train x --stack curr", 4, "current")],
)
def test_shell_completion(words: str, position: int, expected: str) -> None:
    program = shutil.which("orch", path=str(Path(sys.executable).parent))
    assert program, "orch is not installed beside this Python"
    environment = os.environ | {"_ORCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    process = subprocess.run([program], env=environment, capture_output=True, text=True)
    assert expected in process.stdout.split()
    assert process.stderr == ""


def test_completion_of_what_cannot_be_completed_is_silent() -> None:
    environment = os.environ | {"_ORCH_COMPLETE": "complete_bash", "COMP_WORDS": "orch runs foo ", "COMP_CWORD": "3"}
    program = Path(sys.executable).with_name("orch")
    process = subprocess.run([program], env=environment, capture_output=True, text=True)
    assert "error" not in process.stdout + process.stderr


BUG = """
import orchestrator.cli.main as program
program.app = lambda: {}["\x1b no such key"]
program.main()
"""


def test_a_bug_of_ours_leaves_a_log_and_exit_code_3() -> None:
    process = expect_exit(subprocess.run([sys.executable, "-c", BUG], capture_output=True, text=True, timeout=60), 3)
    path = Path(process.stderr.strip().rpartition(" ")[2])
    assert "Traceback" in path.read_text()
    assert "Traceback" not in process.stderr
    path.unlink()
