"""Pods of a job that the cluster does not admit: by quota, policies, or an operator's error."""

from __future__ import annotations

import re
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.targets.kubernetes.api.client import Kube

REASONS = ("FailedCreatePod", "FailedCreate")  # of events
POD_NAME = re.compile(r'pods? "[^"]*"')  # random, and another one at each attempt


def refusal_of(cluster: Kube, job: str) -> str:
    """Return the newest message about pods of a job that could not be created, or ""."""
    try:
        events = [event for reason in REASONS for event in cluster.events(f"reason={reason}")]
    except OrchError:  # the user may not read them
        return ""
    about_job = [event for event in events if concerns(event.get("involvedObject") or {}, job)]
    return str(about_job[-1].get("message", "")) if about_job else ""


def concerns(involved: dict[str, Any], job: str) -> bool:
    """Return whether an object of an event is the job, or one that its operator has made."""
    return f"{involved.get('name', '')}-".startswith(f"{job}-")


def without_pod(message: str) -> str:
    """Return the message without the pod's name, to compare messages by their reason."""
    return POD_NAME.sub("", message)
