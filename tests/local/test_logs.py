"""Run `orch logs` for a run on another node, over a real sshd."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from orchestrator.files import TRAIN
from tests.local.runs import Orch, expect_exit
from tests.support.ports import free_port
from tests.support.recorded import make_run

RUN = "20260101-120000-qa-0000"


def make_two_records(folder: Path, ssh_config: str) -> Path:
    """Record a finished run on a node and on this machine, which has only half of the log.

    Returns:
        The run's folder on the node.
    """
    remote = make_run(folder / "far", RUN, ranks=1, nodes=1)
    node = {"node": "node0", "via": ["ssh", "-F", ssh_config, "node0"]}
    changes = {"run_dir": str(remote), "train": str(TRAIN), "python": sys.executable, "node0": node}
    local = make_run(folder / "runs", RUN, ranks=1, nodes=1, **changes)
    (remote / "ranks/rank-0.log").write_text("line one\nline two\n")
    (local / "ranks/rank-0.log").write_text("line one\n")
    return remote


def test_logs_include_lines_that_only_the_node_has_and_need_no_other_node(
    orch: Orch, sshd: str, tmp_path: Path
) -> None:
    make_two_records(tmp_path, sshd)
    plan = tmp_path / "runs" / RUN / "plan.json"
    value = json.loads(plan.read_text())
    node_off = {"node": "off", "via": ["ssh", "-F", sshd, "off"]}
    plan.write_text(json.dumps(value | {"nodes": [*value["nodes"], node_off]}))
    assert expect_exit(orch("logs", RUN, "--rank", "0")).stdout == "[0 node0] line one\n[0 node0] line two\n"


def test_logs_warn_of_missing_lines_when_the_node_is_unreachable(orch: Orch, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host node0\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    make_two_records(tmp_path, str(config))
    process = expect_exit(orch("logs", RUN), 1)
    assert process.stdout == "[0 node0] line one\n"
    assert "node0" in process.stderr
    assert "may be missing" in process.stderr


def test_logs_fail_when_the_node_has_no_run(orch: Orch, sshd: str, tmp_path: Path) -> None:
    remote = make_two_records(tmp_path, sshd)
    remote.rename(tmp_path / "elsewhere")
    assert str(remote) in expect_exit(orch("logs", RUN, "--follow"), 1).stderr
