"""Handle runs of a node, behind a real sshd, whose records are hostile or damaged.

No program that they name runs on this machine, nothing is written outside of a run's folder, and other runs stay
visible.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.local.runs import Orch, expect_exit
from tests.local.ssh_node import INVENTORY, TWO_RANKS, SshNode
from tests.support.files import write_program
from tests.support.recorded import make_outcome, make_placement, make_plan

GOOD, BAD = "20260101-120000-good-0000", "20270101-120000-evil-0000"
FAR: dict[str, Any] = {"node": "far", "via": []}
COMMANDS = ("attach", "logs", "logs --follow", "stop", "fetch", "report", "runs show")


def make_record(node: SshNode, run: str, **changes: Any) -> dict[str, Any]:
    """Return the record of a run of one rank on the node."""
    plan = make_plan(node.root / "runs" / run, [{**make_placement(0, 1), "node": "far"}])
    programs = {"train": str(node.root / "train"), "python": sys.executable}
    nodes = {"node0": FAR, "nodes": [FAR]}
    return {**plan, **programs, **nodes, "created": 1.0 + (run == BAD), "output_dir": None, **changes}


def make_finished_run(node: SshNode, run: str, **changes: Any) -> Path:
    """Write a finished run into the node's folder of runs; changes are for its record."""
    folder = node.root / "runs" / run
    (folder / "ranks").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(make_record(node, run, **changes)))
    (folder / "outcome.json").write_text(json.dumps(make_outcome("done")))
    (folder / "supervisor.json").write_text(json.dumps({"pid": 2**22 - 1, "started": 1.0}))
    (folder / "ranks/rank-0.log").write_text("a line\n")
    return folder


def listed_runs(orch: Orch) -> tuple[set[str], str]:
    """Return the ids of the node's runs as `orch runs` lists them, and its warnings."""
    process = expect_exit(orch("runs", *INVENTORY, "--json"))
    return {run["id"] for run in json.loads(process.stdout)["runs"]}, process.stderr


def test_folders_and_programs_of_a_record_are_not_trusted(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    mark = tmp_path / "PWNED"
    program = str(write_program(tmp_path / "evil", f"#!/bin/sh\ntouch {mark}\necho '{{}}'\n"))
    far = {"node": "far", "via": ["sh", program]}
    make_finished_run(ssh_node, BAD, node0=far, nodes=[far], python=program, train=str(tmp_path), run_dir="/etc")
    for command in COMMANDS:
        source = ("--from", str(ssh_node.root / "runs" / BAD)) if command == "fetch" else ()
        expect_exit(orch(*command.split(), "last", *INVENTORY, *source))
        if command.startswith(("stop", "logs")):
            expect_exit(orch(*command.split(), "last"))  # from the copy that the first command recorded on this machine
    assert not mark.exists()


def test_run_id_that_is_no_name_creates_no_folder(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    make_finished_run(ssh_node, GOOD)
    bad_runs = {BAD: "../../PWNED", "20270101-120000-evil-0001": "-rf"}
    for name, run in bad_runs.items():
        make_finished_run(ssh_node, name, run_id=run)
    runs, warnings = listed_runs(orch)
    assert runs == {GOOD}
    assert all(name in warnings for name in bad_runs)
    expect_exit(orch("attach", "last", *INVENTORY))
    assert {path.name for path in (tmp_path / "runs").glob("*/")} == {GOOD}
    assert not (tmp_path.parent / "PWNED").exists()


def test_file_names_in_the_folder_of_ranks_are_not_trusted(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    folder = make_finished_run(ssh_node, GOOD)
    for name in ("rank-9.log", "evil.log", "rank-0.log.sh", "rank-x.metrics.jsonl"):
        (folder / "ranks" / name).write_text("evil\n")
    (folder / "ranks/rank-0.metrics.jsonl").symlink_to("/etc/passwd")
    (folder / "launcher.log").symlink_to("/dev/zero")
    expect_exit(orch("attach", "last", *INVENTORY))
    Path(os.fsdecode(bytes(folder / "ranks") + b"/rank-\xff.log")).write_text("evil\n")
    assert "UTF-8" in expect_exit(orch("attach", "last", *INVENTORY)).stderr
    copied_files = {path.name for path in (tmp_path / "runs" / GOOD / "ranks").iterdir()}
    assert copied_files <= {"rank-0.log", "rank-0.metrics.jsonl"}


def test_damaged_run_record_hides_no_other_run_and_can_be_cleaned(orch: Orch, ssh_node: SshNode) -> None:
    make_finished_run(ssh_node, GOOD)
    (make_finished_run(ssh_node, BAD) / "run.json").write_text("[" * 100_000)
    runs, warnings = listed_runs(orch)
    assert runs == {GOOD}
    assert BAD in warnings
    assert "orch clean" in warnings
    assert BAD in expect_exit(orch("clean", "--dry-run", *INVENTORY), 1).stdout
    expect_exit(orch("clean", *INVENTORY))
    assert (ssh_node.root / "runs/damaged" / BAD / "ranks/rank-0.log").exists()
    expect_exit(orch("clean", "--dry-run", *INVENTORY))
    assert "damaged" not in orch("runs", *INVENTORY).stderr


RESPONSES = ("5", "[" * 100_000, '{"schema": 1, "runs": 7, "ended": 7, "left": [{}], "segments": {"a": 1}}')


def test_invalid_responses_of_a_node_are_reported(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    make_finished_run(ssh_node, GOOD)
    expect_exit(orch("attach", "last", *INVENTORY))  # records the run on this machine
    (ssh_node.root / "train").unlink()
    (ssh_node.root / "train").mkdir()
    (ssh_node.root / "train/node.py").write_text(f"print(open({str(tmp_path / 'response')!r}).read())\n")
    for response in RESPONSES:
        (tmp_path / "response").write_text(response)
        for command in (("stop", GOOD), ("clean", *INVENTORY), ("runs", *INVENTORY)):
            process = expect_exit(orch(*command), 1)
            assert process.stdout or process.stderr


def test_node_with_a_damaged_record_is_named_and_ends_no_command(orch: Orch, ssh_node: SshNode, tmp_path: Path) -> None:
    hosts = "".join(f"    {name}:\n      ansible_host: 127.0.0.1\n" for name in ("far", "broken"))
    (tmp_path / "lab.yaml").write_text(f"all:\n  hosts:\n{hosts}")
    (ssh_node.state / "nodes/broken.json").write_text("{")
    make_finished_run(ssh_node, GOOD)
    runs, warnings = listed_runs(orch)
    assert runs == {GOOD}
    assert warnings.count("broken.json") == 1
    for command in ("attach", "logs", "report", "stop"):
        assert "broken.json" in expect_exit(orch(command, "last", *INVENTORY)).stderr, command
    nodes = json.loads(expect_exit(orch("clean", *INVENTORY, "--json"), 1).stdout)["nodes"]
    assert {node["node"]: node["state"] for node in nodes} == {"far": "clean", "broken": "unreachable"}
    train = ("train", "own.py", *INVENTORY, *TWO_RANKS)
    expect_exit(orch(*train, "--nodes", "far", "--dry-run"))
    refused = expect_exit(orch(*train), 2)
    assert "broken.json" in refused.stderr
    assert "orch provision" in refused.stderr
