"""The lines around the output of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import make_app
from orchestrator.cli.options import Output
from orchestrator.cli.running import show
from orchestrator.errors import RequestError
from tests.support.recorded import make_run
from tests.support.slurm_plans import make_array

RUN = "20260101-120000-qa-0000"


SLURM = {"target": "slurm", "location": {"name": "orch-x", "job": "12"}}


@pytest.mark.parametrize(("output", "changes"), [("../../elsewhere", {}), ("output", SLURM)], ids=["local", "slurm"])
def test_id_of_a_run_is_printed_at_its_beginning_and_at_its_end(
    tmp_path: Path, output: str, changes: dict[str, Any]
) -> None:
    folder = tmp_path / "runs" / RUN
    output_dir = (folder / output).resolve()
    make_run(tmp_path / "runs", RUN, ranks=1, nodes=1, seconds=1, output_dir=str(output_dir), **changes)
    output_dir.mkdir(parents=True)
    result = CliRunner().invoke(make_app(), ["attach", "--show", "none", "--runs-dir", str(tmp_path / "runs")])
    assert result.exit_code == 0, result.output
    first, *_, output_line, details = result.output.splitlines()
    assert first == f"run: {RUN} in {tmp_path}/runs"
    assert output_line == f"output: {output_dir}"
    assert details.startswith("details: orch report ")
    assert result.output.count(RUN) == 2


def test_plan_that_is_no_manifest_is_not_printed_as_one() -> None:
    with pytest.raises(RequestError, match="-o yaml requires --on k8s"):
        show(make_array("learning_rate=1e-5,3e-5"), Output(runs_dir=Path("runs"), dry_run=True, format="yaml"))
