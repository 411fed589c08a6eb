"""Check the rendezvous key and the advice on a full volume, and the settings of pods."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from orch_node.pod import rendezvous
from orch_node.protocol.events import Joined, Launched

from orchestrator.report import cleanup
from orchestrator.runs import store, timeline
from orchestrator.runs.cleanup import CleanupReport
from orchestrator.runs.explanations import explain
from orchestrator.runs.outcome import outcome_of
from orchestrator.runs.volumes import advise_on_volume
from orchestrator.targets.kubernetes.image_probe import probe_pod
from orchestrator.targets.kubernetes.manifests.helper_pods import reader_pod
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.manifests.trainjob import shared_runtime
from orchestrator.targets.kubernetes.plan import location
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from tests.support.recorded import make_run

LIB = Path(rendezvous.__file__).parents[2]
SETTINGS = KubernetesSettings(image="registry.example/orch", claim="shared", mount="/orch")
RUN = "20260101-120000-own-1a2b"
RUN_DIR = f"/orch/runs/{RUN}"
WRITE_NOTHING = """
import resource, sys
from pathlib import Path
from orch_node.pod import rendezvous
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
rendezvous.key_of(Path(sys.argv[1]))
"""


def test_a_key_that_could_not_be_written_is_created_by_the_next_pod(tmp_path: Path) -> None:
    full = subprocess.run(
        [sys.executable, "-c", WRITE_NOTHING, str(tmp_path)],
        env={"PYTHONPATH": str(LIB)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "File too large" in full.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 0
    key = rendezvous.key_of(tmp_path)
    assert len(key) == rendezvous.SIZE
    assert rendezvous.key_of(tmp_path) == key


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
def test_a_full_volume_names_the_claim_and_the_folder(line: str, expected: list[str]) -> None:
    (explanation,) = explain(line)
    volume_location = {"claim": "shared", "mount": "/orch"}
    result = "\n".join(advise_on_volume(explanation, volume_location, RUN_DIR).lines())
    for text in expected:
        assert text in result
    assert "df -h" not in result
    assert "--runs-dir" not in result


@pytest.mark.parametrize("is_problem", [True, False], ids=["of-the-job", "of-a-rank"])
def test_the_outcome_of_a_run_names_the_full_volume(tmp_path: Path, is_problem: bool) -> None:
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
    assert "claim shared" in explanation.cause
    assert f"{RUN_DIR}/output/model" in explanation.cure


def test_a_full_disk_of_a_node_keeps_its_advice() -> None:
    (explanation,) = explain("No space left on device")
    assert advise_on_volume(explanation, {}, "/home/me/runs/x") == explanation


def pod_specs(value: Any) -> list[dict[str, Any]]:
    """Return all pod specs in these objects: the mappings that have containers."""
    if isinstance(value, list):
        return [spec for item in value for spec in pod_specs(item)]
    if not isinstance(value, dict):
        return []
    inner = [spec for item in value.values() for spec in pod_specs(item)]
    return [value, *inner] if "containers" in value else inner


def test_no_pod_gets_the_token_of_its_service_account() -> None:
    golden = Path(__file__).parents[3] / "golden" / "k8s"
    runs = [manifest for path in golden.glob("*.yaml") for manifest in yaml.safe_load_all(path.read_text())]
    tools = [reader_pod(location(RUN, "job", SETTINGS), RUN), probe_pod(SETTINGS), shared_runtime(SETTINGS)]
    specs = pod_specs([runs, tools])
    assert len(specs) > len(KINDS) + len(tools)
    assert {spec.get("automountServiceAccountToken") for spec in specs} == {False}


def test_a_rank_that_joins_again_is_not_reported_twice() -> None:
    events = [Launched(ranks=2), *(Joined(rank=rank, backend="ccl") for rank in (0, 1, 0, 1))]
    texts = [moment.text for moment in timeline.timeline_of(events)]
    assert texts.count("all 2 ranks joined on ccl") == 1


def test_stop_of_a_run_without_pods_prints_no_table() -> None:
    result = cleanup.text(CleanupReport(run_id=RUN, seconds=0.1, nodes=()))
    assert "none" not in result
    assert "nothing was running" in result
