"""A run's record as it travels in its ConfigMap: ranks as numbers, for pods are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.record import WHERE, RunRecord, parse, render
from orch_node.protocol.values import ProtocolError

from orchestrator.model.layout import uniform_layout
from orchestrator.targets.kubernetes.manifests import names

CHANGED = ("layout", "nodes")
MOST_RANKS = 100_000


def short(record: RunRecord) -> dict[str, Any]:
    """The record without its lists of nodes and ranks: a ConfigMap holds 1 MiB."""
    first = record.layout[0]
    kept = {name: value for name, value in render(record).items() if name not in CHANGED}
    numbers = {
        "word": first.node.rpartition("-")[0],
        "nodes": len(record.nodes),
        "ppn": first.local_world_size,
        "threads": first.threads,
    }
    return {**kept, "pods": numbers}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNumbers:
    """What stands for the lists. `word`: what pods are called before their number."""

    word: str
    nodes: int
    ppn: int
    threads: int


def whole(value: object) -> RunRecord:
    """The record that `short` made short. Raises ProtocolError."""
    kept = values.an_object(value, WHERE)
    pods = values.read(PodNumbers, kept.get("pods"), f"{WHERE}: pods")
    if not 0 < pods.nodes * pods.ppn <= MOST_RANKS or min(pods.nodes, pods.ppn, pods.threads) < 1:
        raise ProtocolError(f"{WHERE}: pods: {pods.nodes} with {pods.ppn} ranks each cannot be.")
    if not names.is_dns_label(pods.word):
        raise ProtocolError(f"{WHERE}: pods: {pods.word!r:.80} is no name of a pod.")
    places = uniform_layout(prefix=pods.word, nodes=pods.nodes, ppn=pods.ppn, threads=pods.threads)
    nodes = [{"node": node, "via": []} for node in places.nodes]
    return parse({**kept, "nodes": nodes, "layout": values.record(places.places)})
