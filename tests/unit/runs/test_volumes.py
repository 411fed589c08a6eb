"""Check the advice about a full volume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.report.findings import detail_lines
from orchestrator.runs import store
from orchestrator.runs.explanations import explain
from orchestrator.runs.outcome import outcome_of
from orchestrator.runs.volumes import advise_on_volume
from tests.support.recorded import make_run

RUN_DIR = "/orch/runs/20260101-120000-own-1a2b"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            f"OSError: [Errno 28] No space left on device: '{RUN_DIR}/output/model'",
            ["claim shared", "/orch", f"{RUN_DIR}/output/model"],
            id="a-file-on-the-volume",
        ),
        pytest.param(
            "RuntimeError: PytorchStreamWriter failed: No space left on device", ["claim shared", RUN_DIR], id="no-path"
        ),
        pytest.param(
            "OSError: [Errno 28] No space left on device: '/tmp/x'",
            ["pod itself", "/tmp/x", "below /orch"],
            id="the-pods-own-disk",
        ),
    ],
)
def test_full_volume_names_the_claim_and_the_folder(line: str, expected: list[str]) -> None:
    (explanation,) = explain(line)
    volume_location = {"claim": "shared", "mount": "/orch"}
    result = "\n".join(detail_lines(advise_on_volume(explanation, volume_location, RUN_DIR)))
    for text in expected:
        assert text in result
    assert "df -h" not in result
    assert "--runs-dir" not in result


@pytest.mark.parametrize("is_problem", [True, False], ids=["of-the-job", "of-a-rank"])
def test_outcome_of_a_run_names_the_full_volume(tmp_path: Path, is_problem: bool) -> None:
    line = f"OSError: [Errno 28] No space left on device: '{RUN_DIR}/output/model'"
    folder = make_run(
        tmp_path, "run", ranks=2, fails=1, seconds=2, run_dir=RUN_DIR, location={"claim": "shared", "mount": "/orch"}
    )
    if is_problem:
        ended = json.loads((folder / "outcome.json").read_text())
        (folder / "outcome.json").write_text(json.dumps({**ended, "first_failure": None, "problem": line}))
    else:
        (folder / "ranks" / "rank-1.log").write_text(f"step 1\n{line}\n")
    (explanation,) = outcome_of(store.load(folder)).explanations
    assert "claim shared" in explanation.message
    assert f"{RUN_DIR}/output/model" in explanation.cure


def test_full_disk_of_a_node_keeps_its_advice() -> None:
    (explanation,) = explain("No space left on device")
    assert advise_on_volume(explanation, {}, "/home/me/runs/x") == explanation
