"""Explain why the cluster does not admit the pods of a run: quotas, policies, failing operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.model.finding import Finding
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.manifests.quantity import amount, plain, value_of
from orchestrator.targets.kubernetes.settings import KubernetesSettings

Json = Mapping[str, Any]
# The names of resources in a ResourceQuota. orch's requests equal its limits.
CPU = ("cpu", "requests.cpu", "limits.cpu")
MEMORY = ("memory", "requests.memory", "limits.memory")
PODS = ("pods", "count/pods")


def quota_finding(quotas: Iterable[Json] | None, settings: KubernetesSettings, pods: int) -> Finding:
    """Return whether so many pods fit; `quotas` is None if they may not be listed."""
    if quotas is None:
        return Finding(subject="quota", severity="unknown", message="ResourceQuotas may not be listed")
    unscoped = [quota for quota in quotas if not is_scoped(quota)]
    needs = needs_of(settings, pods)
    shortages = [text for quota in unscoped for text in shortages_of(quota, needs)]
    if shortages:
        return Finding(
            subject="quota",
            message="; ".join(shortages),
            cure="Use smaller or fewer pods, or ask the administrator for a larger quota. A run waits "
            "for quota that other pods give back, but not for what exceeds the quota itself.",
        )
    names = ", ".join(str(quota["metadata"]["name"]) for quota in unscoped)
    message = f"the run fits into ResourceQuota {names}" if names else "no ResourceQuota limits pods"
    return Finding(subject="quota", severity="ok", message=message)


def is_scoped(quota: Json) -> bool:
    """Return whether the quota counts only some pods, which orch cannot tell."""
    spec = quota.get("spec") or {}
    return bool(spec.get("scopes") or spec.get("scopeSelector"))


def needs_of(settings: KubernetesSettings, pods: int) -> dict[str, Fraction]:
    cpu, memory = settings.cpus * pods, amount(settings.memory, "memory") * pods
    return {**dict.fromkeys(CPU, cpu), **dict.fromkeys(MEMORY, memory), **dict.fromkeys(PODS, Fraction(pods))}


def shortages_of(quota: Json, needs: Mapping[str, Fraction]) -> list[str]:
    """Return a sentence for each resource of which too little is left."""
    status = quota.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    shortages = []
    for resource, need in needs.items():
        if resource not in hard:
            continue
        limit, usage = value_of(hard[resource]), value_of(used.get(resource, "0"))
        if limit is not None and usage is not None and need > limit - usage:
            shortages.append(
                f"ResourceQuota {quota['metadata']['name']}: {resource}: {used.get(resource, 0)} "
                f"of {hard[resource]} used, the run needs {readable(resource, need)}"
            )
    return shortages


def readable(resource: str, need: Fraction) -> str:
    return f"{float(need) / 2**30:g}Gi" if resource in MEMORY else plain(need)


REASONS = ("FailedCreatePod", "FailedCreate")  # of events
POD_NAME = re.compile(r'pods? "[^"]*"')  # random, and another one at each attempt


def refusal_of(cluster: KubernetesClient, job: str) -> str:
    """Return the newest message about pods of a job that could not be created, or ""."""
    try:
        events = [event for reason in REASONS for event in cluster.events(f"reason={reason}")]
    except OrchError:  # the user may not read them
        return ""
    about_job = [event for event in events if concerns(event.get("involvedObject") or {}, job)]
    return str(about_job[-1].get("message", "")) if about_job else ""


def concerns(involved: dict[str, Any], job: str) -> bool:
    """Return whether an object of an event is the job, or one that its operator has created."""
    return f"{involved.get('name', '')}-".startswith(f"{job}-")


def without_pod(message: str) -> str:
    """Return the message without the pod's name, to compare messages by their reason."""
    return POD_NAME.sub("", message)
