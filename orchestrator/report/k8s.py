"""What `orch k8s check` found, as lines or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from orchestrator.kube_checks import Finding
from orchestrator.report.listing import SCHEMA

SIGNS = {"ok": "ok  ", "miss": "MISS", "unknown": "?   "}


def text(finding: Finding) -> str:
    line = f"{SIGNS[finding.state]}  {finding.topic}: {finding.words}"
    return f"{line}\n      cure: {finding.cure}" if finding.cure else line


def as_json(found: Iterable[Finding]) -> str:
    findings = [asdict(one) for one in found]
    ready = not any(one["state"] == "miss" for one in findings)
    value = {"schema": SCHEMA, "kind": "k8s check", "ready": ready, "findings": findings}
    return json.dumps(value, indent=1)
