"""Check how long orch waits for a probe pod that does not start, and which cause it reports."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.model.finding import Finding
from orchestrator.targets.kubernetes import image_probe
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from orchestrator.targets.kubernetes.status import PodState
from tests.local.kubernetes_runs import add_event, pod_status, set_pod_status, unscheduled
from tests.support.kubernetes_api import Api, make_client

SETTINGS = KubernetesSettings(image="registry.example/orch:current")
NO_SANDBOX = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to set up sandbox "
    'container network: plugin type="flannel" failed'
)


def probe(api: Api, status: dict[str, Any]) -> tuple[Finding, list[str]]:
    """Return the finding and the lines printed meanwhile, for a pod that stays in a status."""
    lines: list[str] = []
    kubelet = threading.Thread(target=set_pod_status, args=(api, status))
    kubelet.start()
    finding = image_probe.check_image(make_client(api.url), SETTINGS, lines.append, pull=True)
    kubelet.join()
    return finding, lines


def shorten_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    short = tuple(replace(problem, seconds=min(problem.seconds, 2.0)) for problem in image_probe.START_PROBLEMS)
    monkeypatch.setattr(image_probe, "START_PROBLEMS", short)


def test_sandbox_that_cannot_be_created_is_not_blamed_on_the_image(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)
    add_event(api, image_probe.PROBE, "FailedCreatePodSandBox", NO_SANDBOX)
    finding, lines = probe(api, pod_status("Pending", waiting={"reason": "ContainerCreating"}))
    assert finding.severity == "miss"
    assert NO_SANDBOX in finding.message
    assert "The image was not tried" in finding.cure
    assert any(NO_SANDBOX in line for line in lines), "the reason is shown while it waits"
    assert api.names("pods") == []


def test_pod_without_a_node_is_not_blamed_on_the_image(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_waits(monkeypatch)
    finding, _ = probe(api, {"phase": "Pending", **unscheduled("0/3 nodes are available")})
    assert "waits for a node: 0/3 nodes are available" in finding.message
    assert "The image was not tried" in finding.cure


def test_wait_ends_although_the_reasons_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = itertools.cycle(["cannot be created: no space", "FailedCreatePodSandBox: no network"])
    monkeypatch.setattr(image_probe, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(image_probe, "PULL_SECONDS", 0.5)
    monkeypatch.setattr(
        image_probe, "pod_state", lambda pod, events: PodState(pod="p", node="p", state="waiting", reason=next(texts))
    )
    cluster = SimpleNamespace(get=lambda path: {}, events_of=lambda name: [])
    finding = image_probe.await_pull(cluster, "pods/p", SETTINGS, lambda line: None)  # type: ignore[arg-type]
    assert finding.severity == "miss"


def test_wait_depends_on_the_problem() -> None:
    sandbox = image_probe.start_problem("FailedCreatePodSandBox: no network")
    assert sandbox.seconds < image_probe.PULL_SECONDS / 4
    assert image_probe.start_problem("its image x cannot be pulled: denied").seconds == 0
    assert image_probe.start_problem("").seconds == image_probe.PULL_SECONDS


def test_pull_without_events_is_reported_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_probe, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(image_probe, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(image_probe, "NOT_STARTED", replace(image_probe.NOT_STARTED, seconds=0.5))
    cluster = SimpleNamespace(get=lambda path: {"metadata": {"name": "p"}}, events_of=lambda name: [])
    lines: list[str] = []
    image_probe.await_pull(cluster, "pods/p", SETTINGS, lines.append)  # type: ignore[arg-type]
    (line,) = lines
    assert SETTINGS.image in line
