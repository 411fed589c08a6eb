"""A node behind a real sshd whose folders of runs say what they like: nothing of it runs on this
machine, nothing is written outside of a run's folder, and other runs stay in sight."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.local.runs import Orch, expect_exit
from tests.local.ssh_node import INVENTORY, SshNode
from tests.support.recorded import ended, place

GOOD, BAD = "20260101-120000-good-0000", "20270101-120000-evil-0000"
VERBS = (
    ("attach", "last"),
    ("logs", "last"),
    ("logs", "last", "--follow"),
    ("stop", "last"),
    ("fetch", "last"),
    ("report", "last"),
    ("runs", "show", "last"),
)


def record(ssh_node: SshNode, run: str, **changes: Any) -> dict[str, Any]:
    far = {"node": "far", "via": []}
    return {
        "schema": 1,
        "run_id": run,
        "key": "k",
        "created": 1.0 + (run == BAD),
        "recipe": "qa",
        "node0": far,
        "nodes": [far],
        "train": str(ssh_node.root / "train"),
        "python": sys.executable,
        "started_by": "me@here",
        "run_dir": str(ssh_node.root / "runs" / run),
        "resumes": True,
        "output_dir": None,
        "backend": "gloo",
        "precision": "fp32",
        "decisions": [],
        "layout": [{**place(0, 1), "node": "far"}],
        **changes,
    }


def leave(ssh_node: SshNode, run: str, **changes: Any) -> Path:
    """A run that has ended, in the node's folder."""
    folder = ssh_node.root / "runs" / run
    (folder / "ranks").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record(ssh_node, run, **changes)))
    (folder / "outcome.json").write_text(json.dumps(ended("done")))
    (folder / "supervisor.json").write_text(json.dumps({"pid": 2**22 - 1, "started": 1.0}))
    (folder / "ranks/rank-0.log").write_text("a line\n")
    return folder


def program(tmp_path: Path) -> tuple[str, Path]:
    """A program that leaves a mark where it runs, and the mark."""
    mark, path = tmp_path / "PWNED", tmp_path / "evil"
    path.write_text(f"#!/bin/sh\ntouch {mark}\necho '{{}}'\n")
    path.chmod(0o755)
    return str(path), mark


def test_a_record_of_an_unknown_node_runs_nothing_here(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    evil, mark = program(tmp_path)
    ghost: dict[str, Any] = {"node": "ghost", "via": []}
    leave(ssh_node, GOOD)
    leave(ssh_node, BAD, node0=ghost, nodes=[ghost, {"node": "far", "via": []}], python=evil)
    for verb in VERBS:
        process = expect_exit(orch(*verb, *INVENTORY), 2)
        assert "ghost" in process.stderr
        assert not mark.exists(), verb
    listed = orch("runs", *INVENTORY, "--json")
    assert {one["id"] for one in json.loads(listed.stdout)["runs"]} == {GOOD, BAD}
    assert "ghost" in listed.stderr
    expect_exit(orch("stop", GOOD, *INVENTORY))
    assert not mark.exists()


def test_folders_and_programs_of_a_record_are_not_believed(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    evil, mark = program(tmp_path)
    far = {"node": "far", "via": ["sh", evil]}
    leave(ssh_node, BAD, node0=far, nodes=[far], python=evil, train=str(tmp_path), run_dir="/etc")
    for verb in VERBS:
        source = ("--from", str(ssh_node.root / "runs" / BAD)) if verb[0] == "fetch" else ()
        expect_exit(orch(*verb, *INVENTORY, *source))
        if verb[0] in ("stop", "logs"):
            expect_exit(orch(*verb, *source))
    assert not mark.exists()


@pytest.mark.parametrize("run", ["../../PWNED", "-rf"])
def test_a_run_id_that_is_a_path_makes_no_folder(orch: Orch, ssh_node: SshNode, tmp_path: Path, run: str) -> None:
    leave(ssh_node, GOOD)
    folder = leave(ssh_node, BAD)
    (folder / "run.json").write_text(json.dumps(record(ssh_node, BAD) | {"run_id": run}))
    listed = orch("runs", *INVENTORY, "--json")
    assert [one["id"] for one in json.loads(listed.stdout)["runs"]] == [GOOD]
    assert BAD in listed.stderr
    expect_exit(orch("attach", "last", *INVENTORY))
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {GOOD}
    assert not (tmp_path.parent / "PWNED").exists()


def test_names_in_the_folder_of_ranks_are_not_believed(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    folder = leave(ssh_node, GOOD)
    for name in ("rank-9.log", "evil.log", "rank-0.log.sh", "rank-x.metrics.jsonl"):
        (folder / "ranks" / name).write_text("evil\n")
    (folder / "ranks/rank-0.metrics.jsonl").symlink_to("/etc/passwd")
    (folder / "launcher.log").symlink_to("/dev/zero")
    expect_exit(orch("attach", "last", *INVENTORY))
    Path(os.fsdecode(bytes(folder / "ranks") + b"/rank-\xff.log")).write_text("evil\n")
    told = orch("attach", "last", *INVENTORY)
    assert (told.returncode, "UTF-8" in told.stderr) == (0, True), told.stderr
    here = {path.name for path in (tmp_path / "runs" / GOOD / "ranks").iterdir()}
    assert here <= {"rank-0.log", "rank-0.metrics.jsonl"}


@pytest.mark.parametrize("content", ["", "[" * 100_000], ids=["empty", "nested"])
def test_a_damaged_record_hides_no_other_and_can_be_cleaned(orch: Orch, ssh_node: SshNode, content: str) -> None:
    leave(ssh_node, GOOD)
    folder = leave(ssh_node, BAD)
    (folder / "run.json").write_text(content)
    listed = expect_exit(orch("runs", *INVENTORY, "--json"))
    assert [one["id"] for one in json.loads(listed.stdout)["runs"]] == [GOOD]
    assert BAD in listed.stderr
    assert "orch clean" in listed.stderr
    looked = orch("clean", "--check", *INVENTORY)
    assert (looked.returncode, BAD in looked.stdout) == (1, True), looked.stdout + looked.stderr
    expect_exit(orch("clean", *INVENTORY))
    assert (ssh_node.root / "runs/damaged" / BAD / "ranks/rank-0.log").exists()
    expect_exit(orch("clean", "--check", *INVENTORY))
    assert "damaged" not in orch("runs", *INVENTORY).stderr


ANSWERS = (
    "",
    "5",
    "{}",
    "[" * 100_000,
    '{"schema": 1, "runs": 7, "ended": 7, "left": [{}], "segments": {"a": 1}}',
    '{"rank": 99, "at": 0, "lines": ["a"]}',
)


def test_a_node_that_answers_anything_is_told(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    leave(ssh_node, GOOD)
    expect_exit(orch("attach", "last", *INVENTORY))  # known here from now on
    (ssh_node.root / "train").unlink()
    (ssh_node.root / "train").mkdir()
    (ssh_node.root / "train/node.py").write_text(f"print(open({str(tmp_path / 'answer')!r}).read())\n")
    for answer in ANSWERS:
        (tmp_path / "answer").write_text(answer)
        for verb in (("stop", GOOD), ("logs", GOOD), ("clean", *INVENTORY), ("runs", *INVENTORY)):
            process = expect_exit(orch(*verb), 1)
            assert process.stdout or process.stderr
