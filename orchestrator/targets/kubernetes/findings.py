"""What `orch k8s check` asks of a cluster, as values: pure but for the answers it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from orchestrator.errors import OrchError, PlanError
from orchestrator.targets.kubernetes.manifests import pod_settings
from orchestrator.targets.kubernetes.manifests.kinds import KINDS, PREFERRED, Installed, default_kind
from orchestrator.targets.kubernetes.manifests.quantity import amount, plain
from orchestrator.targets.kubernetes.rights import Right, describe_rules
from orchestrator.targets.kubernetes.settings import KubeSettings

Json = Mapping[str, Any]
# As Node Feature Discovery labels nodes.
BF16_LABELS = ("feature.node.kubernetes.io/cpu-cpuid.AVX512BF16", "feature.node.kubernetes.io/cpu-cpuid.AMXBF16")
ROLE = "`orch k8s role | kubectl apply -f -`, by an administrator, makes a Role; bind it to you."

PROGRESS_EVENTS = {"ok": "ok  ", "miss": "MISS", "absent": "-   ", "unknown": "?   "}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`state`: ok, miss (runs will fail), absent (and not needed), or unknown. `cure`: what to do
    about a miss."""

    topic: str
    state: str
    words: str
    cure: str = ""

    def describe(self) -> str:
        line = f"{PROGRESS_EVENTS[self.state]}  {self.topic}: {self.words}"
        return f"{line}\n      cure: {self.cure}" if self.cure else line


def in_question(served: Mapping[str, tuple[str, ...]], wanted: str | None) -> list[str]:
    """The launchers that a user will take. Every cluster has plain Jobs; they are asked for, or
    are what is left."""
    kubeflow = [one for one in KINDS if one != "job" and served.get(one)]
    return [wanted] if wanted else kubeflow or ["job"]


def kinds_findings(served: Mapping[str, tuple[str, ...]], wanted: str | None) -> list[Finding]:
    """`served`: launcher -> the versions of its group that serve its resource, or none."""
    found = []
    for launcher, kind in KINDS.items():
        versions = served.get(launcher, ())
        here = kind.version in versions
        needed = wanted == launcher or (wanted is None and not any(served.values()))
        other = f" only {', '.join(versions)}" if versions else " not installed"
        found.append(
            Finding(
                topic=kind.kind,
                state="ok" if here else "miss" if needed else "absent",
                words=f"{kind.group}/{kind.version}" + ("" if here else f":{other}"),
                cure="" if here else f"{kind.comes_with} brings it.",
            )
        )
    return found


def default_finding(served: Mapping[str, tuple[str, ...]]) -> Finding:
    """Which kind a run becomes without --launcher, and why."""
    here = tuple(name for name in PREFERRED if KINDS[name].version in served.get(name, ()))
    try:
        found = default_kind(Installed(launchers=here))
    except PlanError as error:
        return Finding(topic="default", state="miss", words=error.message, cure=error.hint)
    (told,) = found.decisions
    return Finding(topic="default", state="ok", words=f"--launcher {found.value}: {told.reason}")


def rights_finding(denied: Iterable[Right], namespace: str) -> Finding:
    missing = list(denied)
    if not missing:
        return Finding(topic="rights", state="ok", words="all that orch needs")
    return Finding(
        topic="rights",
        state="miss",
        words=f"not allowed in {namespace}: {describe_rights(missing)}",
        cure=f"{ROLE} It has: {describe_rules(missing)}",
    )


def init_finding(denied: Iterable[Right], *, needed: bool) -> Finding:
    """Return whether `orch k8s init --apply` is allowed; runs only need what it has made."""
    missing = list(denied)
    if not missing:
        return Finding(topic="init", state="ok", words="orch k8s init --apply is allowed")
    return Finding(
        topic="init",
        state="miss" if needed else "absent",
        words=f"not allowed: {describe_rights(missing)}",
        cure=f"{ROLE} Or an administrator runs `orch k8s init --apply`." if needed else "",
    )


def describe_rights(rights: Iterable[Right]) -> str:
    return ", ".join(f"{verb} {resource} ({purpose})" for verb, _, resource, purpose in rights)


def claim_unseen(error: OrchError) -> Finding:
    """One may not look, or the API does not answer."""
    return Finding(topic="volume", state="unknown", words=error.message, cure=error.hint)


def namespace_finding(error: OrchError) -> Finding:
    return Finding(topic="namespace", state="miss", words=error.message, cure=error.hint)


def claim_finding(claim: Json | None, settings: KubeSettings, pods: int) -> Finding:
    """`claim`: None if there is none of this name."""
    init = "`orch k8s init --apply` makes one; storage_class names a class that has ReadWriteMany."
    if claim is None:
        return Finding(topic="volume", state="miss", words=f"no claim {settings.claim}", cure=init)
    phase = claim.get("status", {}).get("phase", "Pending")
    modes = claim.get("spec", {}).get("accessModes") or []
    if phase != "Bound":
        words = f"claim {settings.claim} is {phase}"
        cure = (
            "A class with WaitForFirstConsumer binds it with the first pod; else `kubectl describe "
            f"pvc {settings.claim}` says what it waits for."
        )
        return Finding(topic="volume", state="miss", words=words, cure=cure)
    if pods > 1 and "ReadWriteMany" not in modes:
        words = f"claim {settings.claim} is {', '.join(modes)}: pods on several nodes cannot share it"
        return Finding(topic="volume", state="miss", words=words, cure=init)
    return Finding(topic="volume", state="ok", words=f"claim {settings.claim} is bound")


def nodes_finding(nodes: list[Json] | None, settings: KubeSettings, pods: int) -> Finding:
    """Whether so many pods find room; `nodes`: None where one may not look."""
    if nodes is None:
        return Finding(topic="nodes", state="unknown", words="they may not be listed")
    fitting = [node for node in nodes if fits(node, settings)]
    room = sum(room_on(node, settings) for node in fitting)
    size = f"{settings.cpu} CPUs and {settings.memory}"
    words = f"{len(fitting)} of {len(nodes)} nodes can take pods of {size}, {room} such pods in all"
    if room >= pods:
        return Finding(topic="nodes", state="ok", words=f"{words}, if nothing else runs there")
    largest = max((cpus_of(node) for node in nodes), default=Fraction(0))
    return Finding(
        topic="nodes",
        state="miss",
        words=f"{words}; the run needs {pods}",
        cure=f"Smaller pods (--k8s cpu=..., the largest node has {plain(largest)} CPUs to give), "
        "fewer of them, or other nodes (node_selector, node_affinity, tolerations).",
    )


def flags_finding(nodes: list[Json] | None, settings: KubeSettings) -> Finding:
    fitting = [node for node in nodes or () if fits(node, settings)]
    able = [node for node in fitting if any(label in labels(node) for label in BF16_LABELS)]
    if not able:
        return Finding(
            topic="BF16",
            state="unknown",
            words="no label tells which nodes have instructions",
            cure="Node Feature Discovery labels nodes; each pod checks for itself in any case.",
        )
    if len(able) == len(fitting):
        return Finding(topic="BF16", state="ok", words=f"on all {len(able)} nodes that fit")
    return Finding(
        topic="BF16",
        state="absent",
        words=f"on {len(able)} of {len(fitting)} nodes that fit; a run with a pod on another node trains in fp32",
        cure=f"--k8s node_selector.{BF16_LABELS[0]}=true keeps its pods on nodes that have them.",
    )


def labels(node: Json) -> Mapping[str, str]:
    return dict(node["metadata"].get("labels") or {})


def fits(node: Json, settings: KubeSettings) -> bool:
    """Whether a pod may run there at all, and is small enough."""
    if node.get("spec", {}).get("unschedulable"):
        return False
    tolerated = [pod_settings.toleration(one) for one in settings.tolerations]
    for taint in node.get("spec", {}).get("taints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and not pod_settings.tolerates(tolerated, taint):
            return False
    own = labels(node)
    chosen = all(own.get(key) == value for key, value in settings.node_selector.items())
    wanted = all(pod_settings.holds(pod_settings.expression(one), own) for one in settings.node_affinity)
    return chosen and wanted and room_on(node, settings) > 0


def room_on(node: Json, settings: KubeSettings) -> int:
    memory = given(node, "memory") // amount(settings.memory, "memory")
    return int(min(cpus_of(node) // settings.cpus, memory))


def cpus_of(node: Json) -> Fraction:
    return given(node, "cpu")


def given(node: Json, what: str) -> Fraction:
    """What the node has for pods; 0 where it does not say."""
    try:
        return amount(str(node.get("status", {}).get("allocatable", {}).get(what, "")), what)
    except PlanError:
        return Fraction(0)
