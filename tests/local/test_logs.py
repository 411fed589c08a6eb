"""`orch logs` of a run on another node, over a real sshd."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.paths import TRAIN
from tests.local.runs import Orch, expect_exit
from tests.support.ports import free_port
from tests.support.recorded import make_run

RUN = "20260101-120000-qa-0000"


def two_runs(tmp_path: Path, config: str) -> Path:
    """A run that has ended, on a node and here; -> its folder on the node. Here is what was brought
    while it ran: half of the log."""
    far = make_run(tmp_path / "far", RUN, ranks=1, nodes=1)
    here = make_run(
        tmp_path / "runs",
        RUN,
        ranks=1,
        nodes=1,
        run_dir=str(far),
        train=str(TRAIN),
        python=sys.executable,
        node0={"node": "node0", "via": ["ssh", "-F", config, "node0"]},
    )
    (far / "ranks/rank-0.log").write_text("line one\nline two\n")
    (here / "ranks/rank-0.log").write_text("line one\n")
    return far


def test_the_node_knows_more_than_what_was_brought_while_it_ran(orch: Orch, sshd: str, tmp_path: Path) -> None:
    two_runs(tmp_path, sshd)
    process = expect_exit(orch("logs", RUN))
    assert process.stdout == "[0 node0] line one\n[0 node0] line two\n"


def test_without_the_node_there_is_what_was_brought_and_that_is_said(orch: Orch, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host node0\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    two_runs(tmp_path, str(config))
    process = orch("logs", RUN)
    assert (process.returncode, process.stdout) == (1, "[0 node0] line one\n")
    assert "node0" in process.stderr
    assert "may be missing" in process.stderr


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_a_run_that_is_gone_from_its_node_is_no_empty_log(
    orch: Orch, sshd: str, tmp_path: Path, follow: tuple[str, ...]
) -> None:
    far = two_runs(tmp_path, sshd)
    far.rename(tmp_path / "elsewhere")
    process = expect_exit(orch("logs", RUN, *follow), 1)
    assert str(far) in process.stderr
