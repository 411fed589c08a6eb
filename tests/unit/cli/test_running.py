"""The lines around the output of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import make_app
from tests.support.recorded import make_run

RUN = "20260101-120000-qa-0000"


SLURM = {"target": "slurm", "location": {"name": "orch-x", "job": "12"}}


@pytest.mark.parametrize(("output", "changes"), [("../../elsewhere", {}), ("output", SLURM)], ids=["local", "slurm"])
def test_lines_around_the_output_name_the_run(tmp_path: Path, output: str, changes: dict[str, Any]) -> None:
    folder = tmp_path / "runs" / RUN
    output_dir = (folder / output).resolve()
    make_run(tmp_path / "runs", RUN, ranks=1, nodes=1, seconds=1, output_dir=str(output_dir), **changes)
    output_dir.mkdir(parents=True)
    result = CliRunner().invoke(make_app(), ["attach", "--show", "none", "--runs-dir", str(tmp_path / "runs")])
    assert result.exit_code == 0, result.output
    first, *_, output_line, details = result.output.splitlines()
    assert first == f"run: {RUN} in {tmp_path}/runs"
    assert output_line == f"output: {output_dir}"
    assert details == f"details: orch report {RUN} --runs-dir {tmp_path}/runs"  # `last` may be another run by then
