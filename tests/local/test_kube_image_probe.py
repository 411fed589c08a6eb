"""A probe pod that does not start: what is waited for, for how long, and what is blamed."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.targets.kubernetes import image_probe
from orchestrator.targets.kubernetes.findings import Finding
from orchestrator.targets.kubernetes.settings import KubeSettings
from orchestrator.targets.kubernetes.status import PodState
from tests.local.test_kube import api
from tests.support.kube_api import Api, client_of

__all__ = ["api"]
SETTINGS = KubeSettings(image="registry.example/orch:current")
NO_SANDBOX = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to set up sandbox "
    'container network: plugin type="flannel" failed'
)
CREATING = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]}


def probe(api: Api, status: dict[str, Any]) -> tuple[Finding, list[str]]:
    """Return the finding and the lines printed meanwhile, for a pod that stays in a status."""
    lines: list[str] = []

    def answer() -> None:
        api.await_(lambda: api.names("pods"))
        made = api.get("pods", image_probe.PROBE) or {}
        api.put("pods", {**made, "status": {"phase": "Pending", **status}})

    kubelet = threading.Thread(target=answer)
    kubelet.start()
    finding = image_probe.check_image(client_of(api.url), SETTINGS, lines.append, pull=True)
    kubelet.join()
    return finding, lines


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    short = tuple(replace(problem, seconds=min(problem.seconds, 2.0)) for problem in image_probe.START_PROBLEMS)
    monkeypatch.setattr(image_probe, "START_PROBLEMS", short)


def test_a_sandbox_that_cannot_be_created_is_no_fault_of_the_image(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    event = {"reason": "FailedCreatePodSandBox", "message": NO_SANDBOX}
    involved = {"involvedObject": {"name": image_probe.PROBE}}
    api.put("events", {"metadata": {"name": "e"}, **event, **involved})
    finding, lines = probe(api, CREATING)
    assert (finding.state, NO_SANDBOX in finding.message) == ("miss", True)
    assert "The image was not tried" in finding.cure
    assert any(NO_SANDBOX in line for line in lines), "it does not wait silently"
    assert api.names("pods") == []


def test_a_pod_without_a_node_is_no_fault_of_the_image(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    finding, _ = probe(api, UNSCHEDULABLE)
    assert "waits for a node: 0/3 nodes are available" in finding.message
    assert "The image was not tried" in finding.cure


def test_waiting_ends_also_if_the_reasons_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = itertools.cycle(["cannot be created: no space", "FailedCreatePodSandBox: no network"])
    monkeypatch.setattr(image_probe, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(image_probe, "PULL_SECONDS", 0.5)
    monkeypatch.setattr(
        image_probe, "pod_state", lambda pod, events: PodState(pod="p", node="p", state="waiting", reason=next(texts))
    )
    cluster = SimpleNamespace(get=lambda path: {}, events_of=lambda name: [])
    finding = image_probe.await_pull(cluster, "pods/p", SETTINGS, lambda line: None)  # type: ignore[arg-type]
    assert finding.state == "miss"


def test_waiting_ends_long_before_the_time_for_a_pull() -> None:
    sandbox = image_probe.start_problem("FailedCreatePodSandBox: no network")
    assert sandbox.seconds < image_probe.PULL_SECONDS / 4
    assert image_probe.start_problem("its image x cannot be pulled: denied").seconds == 0
    assert image_probe.start_problem("").seconds == image_probe.PULL_SECONDS


def test_a_pull_without_events_is_reported_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_probe, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(image_probe, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(image_probe, "NOT_STARTED", replace(image_probe.NOT_STARTED, seconds=0.5))
    cluster = SimpleNamespace(get=lambda path: {"metadata": {"name": "p"}}, events_of=lambda name: [])
    lines: list[str] = []
    image_probe.await_pull(cluster, "pods/p", SETTINGS, lines.append)  # type: ignore[arg-type]
    (line,) = lines
    assert SETTINGS.image in line
