"""The findings of `orch k8s check`, from the objects of the cluster's API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.model.finding import Finding, finding_of
from orchestrator.model.printable import counted
from orchestrator.targets.kubernetes.manifests import pod_settings
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, PREFERRED, Installed, default_kind
from orchestrator.targets.kubernetes.manifests.quantity import amount, plain
from orchestrator.targets.kubernetes.rights import Right, describe_rules
from orchestrator.targets.kubernetes.settings import KubernetesSettings

Json = Mapping[str, Any]
# Labels that Node Feature Discovery puts on nodes.
BF16_LABELS = ("feature.node.kubernetes.io/cpu-cpuid.AVX512BF16", "feature.node.kubernetes.io/cpu-cpuid.AMXBF16")
ROLE = "An administrator creates the Role with `orch k8s role | kubectl apply -f -`, and binds it to you."


def relevant_launchers(served: Mapping[str, tuple[str, ...]], requested: str | None) -> list[str]:
    """Return the launchers to check: the requested one, else Kubeflow's, else plain Jobs."""
    kubeflow = [launcher for launcher in KINDS if launcher != "job" and served.get(launcher)]
    return [requested] if requested else kubeflow or ["job"]


def kinds_findings(served: Mapping[str, tuple[str, ...]], requested: str | None) -> Iterator[Finding]:
    """Yield which kinds of jobs the cluster has.

    Args:
        served: by launcher, the API versions that serve its kind.
        requested: the launcher that the user will take, or None.
    """
    for launcher, kind in KINDS.items():
        versions = served.get(launcher, ())
        is_served = kind.version in versions
        needed = requested == launcher or (requested is None and not any(served.values()))
        problem = f" only {', '.join(versions)}" if versions else " not installed"
        yield Finding(
            subject=kind.kind,
            severity="ok" if is_served else "miss" if needed else "absent",
            message=f"{kind.group}/{kind.version}" + ("" if is_served else f":{problem}"),
            cure="" if is_served else f"Install {kind.comes_with}.",
        )


def default_finding(served: Mapping[str, tuple[str, ...]]) -> Finding:
    """Return which kind a run becomes without --launcher, and why."""
    available = tuple(name for name in PREFERRED if KINDS[name].version in served.get(name, ()))
    try:
        choice = default_kind(Installed(launchers=available))
    except PlanError as error:
        return finding_of(error, "default")
    (decision,) = choice.decisions
    return Finding(subject="default", severity="ok", message=f"--launcher {choice.value}: {decision.reason}")


def rights_finding(denied: Iterable[Right], namespace: str) -> Finding:
    missing = list(denied)
    if not missing:
        return Finding(subject="rights", severity="ok", message="all that orch needs are granted")
    return Finding(
        subject="rights",
        message=f"not allowed in {namespace}: {describe_rights(missing)}",
        cure=f"{ROLE} It has: {describe_rules(missing)}",
    )


def init_finding(denied: Iterable[Right], *, needed: bool) -> Finding:
    """Return whether `orch k8s init --apply` is allowed; runs only need what it has made."""
    missing = list(denied)
    if not missing:
        return Finding(subject="init", severity="ok", message="orch k8s init --apply is allowed")
    return Finding(
        subject="init",
        severity="miss" if needed else "absent",
        message=f"not allowed: {describe_rights(missing)}",
        cure=f"{ROLE} Or an administrator runs `orch k8s init --apply`." if needed else "",
    )


def describe_rights(rights: Iterable[Right]) -> str:
    return ", ".join(f"{verb} {resource} ({purpose})" for verb, _, resource, purpose in rights)


def claim_finding(claim: Json | None, settings: KubernetesSettings, pods: int) -> Finding:
    """Return whether the claim can be used by so many pods; None means that it does not exist."""
    init = "`orch k8s init --apply` creates one; storage_class names a class with ReadWriteMany."
    if claim is None:
        return Finding(subject="volume", message=f"no claim {settings.claim}", cure=init)
    phase = claim.get("status", {}).get("phase", "Pending")
    modes = claim.get("spec", {}).get("accessModes") or []
    if phase != "Bound":
        message = f"claim {settings.claim} is {phase}"
        cure = (
            "A class with WaitForFirstConsumer binds it with the first pod. Otherwise `kubectl describe "
            f"pvc {settings.claim}` shows what it waits for."
        )
        return Finding(subject="volume", message=message, cure=cure)
    if pods > 1 and "ReadWriteMany" not in modes:
        message = f"claim {settings.claim} is {', '.join(modes)}: pods on several nodes cannot share it"
        return Finding(subject="volume", message=message, cure=init)
    return Finding(subject="volume", severity="ok", message=f"claim {settings.claim} is bound")


def nodes_finding(nodes: list[Json] | None, settings: KubernetesSettings, pods: int) -> Finding:
    """Return whether so many pods fit; `nodes` is None if they may not be listed."""
    if nodes is None:
        return Finding(subject="nodes", severity="unknown", message="they may not be listed")
    fitting = [node for node in nodes if fits(node, settings)]
    room = sum(room_on(node, settings) for node in fitting)
    size = f"{settings.cpu} CPUs and {settings.memory}"
    capacity = (
        f"{len(fitting)} of {counted(len(nodes), 'node')} can take pods of {size}, {counted(room, 'such pod')} in all"
    )
    if room >= pods:
        return Finding(subject="nodes", severity="ok", message=f"{capacity}, if nothing else runs there")
    largest = max((cpus_of(node) for node in nodes), default=Fraction(0))
    return Finding(
        subject="nodes",
        message=f"{capacity}; the run needs {pods}",
        cure=f"Request smaller pods (--k8s cpu=..., the largest node has {plain(largest)} allocatable CPUs), "
        "fewer pods, or other nodes (node_selector, node_affinity, tolerations).",
    )


def flags_finding(nodes: list[Json] | None, settings: KubernetesSettings) -> Finding:
    """Return which of the fitting nodes have BF16 instructions, by their labels."""
    fitting = [node for node in nodes or () if fits(node, settings)]
    able = [node for node in fitting if any(label in labels(node) for label in BF16_LABELS)]
    if not able:
        return Finding(
            subject="BF16",
            severity="unknown",
            message="no label shows which nodes have BF16 instructions",
            cure="Node Feature Discovery labels nodes; each pod checks for itself in any case.",
        )
    if len(able) == len(fitting):
        return Finding(subject="BF16", severity="ok", message=f"on all nodes that fit ({len(able)})")
    return Finding(
        subject="BF16",
        severity="absent",
        message=f"on {len(able)} of {counted(len(fitting), 'node')} that fit; a run with a pod on another node trains "
        "in fp32",
        cure=f"--k8s node_selector.{BF16_LABELS[0]}=true selects nodes with these instructions.",
    )


def labels(node: Json) -> Mapping[str, str]:
    return dict(node["metadata"].get("labels") or {})


def fits(node: Json, settings: KubernetesSettings) -> bool:
    """Return whether a pod may run on a node, and is small enough for it."""
    if node.get("spec", {}).get("unschedulable"):
        return False
    tolerated = [pod_settings.toleration(text) for text in settings.tolerations]
    for taint in node.get("spec", {}).get("taints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and not pod_settings.tolerates(tolerated, taint):
            return False
    node_labels = labels(node)
    is_selected = all(node_labels.get(key) == value for key, value in settings.node_selector.items())
    conditions = map(pod_settings.expression, settings.node_affinity)
    is_allowed = all(pod_settings.holds(condition, node_labels) for condition in conditions)
    return is_selected and is_allowed and room_on(node, settings) > 0


def room_on(node: Json, settings: KubernetesSettings) -> int:
    memory = allocatable(node, "memory") // amount(settings.memory, "memory")
    return int(min(cpus_of(node) // settings.cpus, memory))


def cpus_of(node: Json) -> Fraction:
    return allocatable(node, "cpu")


def allocatable(node: Json, resource: str) -> Fraction:
    """Return how much of a resource a node has for pods, or 0 if it does not report that."""
    try:
        return amount(str(node.get("status", {}).get("allocatable", {}).get(resource, "")), resource)
    except PlanError:
        return Fraction(0)
