"""run.json, on every node of a run: what any controller must know to find it and to tell of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from orchestrator.kube.place import KubePlace
from orchestrator.plan import Plan, PutFile, Target

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a run lives; `train` and `python` are paths on its nodes, node0 is the first.

    `kube`: its job, where the nodes are pods of a Kubernetes cluster.
    """

    run_id: str
    run_dir: str
    train: str
    python: str
    nodes: tuple[Target, ...]
    kube: KubePlace | None = None

    @property
    def node0(self) -> Target:
        return self.nodes[0]

    def program(self, name: str, *arguments: str) -> tuple[str, ...]:
        """The command of one of the programs in train/, on a node."""
        return (self.python, f"{self.train}/{name}", *arguments)


def run_card(plan: Plan) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run_id": plan.run_id,
        "key": plan.key,
        "node0": record(plan.node0),
        "nodes": [record(target) for target in plan.nodes],
        "run_dir": plan.run_dir,
        "train": plan.train,
        "python": plan.python,
        "recipe": plan.recipe,
        "resumes": plan.resumes,
        "output_dir": plan.output_dir,
        "backend": plan.backend,
        "precision": plan.precision,
        "started_by": plan.started_by,
        "created": plan.created,
        "decisions": [record(decision) for decision in plan.decisions],
        "layout": [record(place) for place in plan.layout.places],
        **({"kube": asdict(plan.kube)} if plan.kube else {}),
    }


def record(value: Any) -> dict[str, Any]:
    """A flat dataclass as JSON has it; asdict() copies deeply, which takes seconds for a thousand
    nodes."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def with_card(plan: Plan) -> Plan:
    """The plan, and the step that lays its run.json before the start."""
    content = json.dumps(run_card(plan)) + "\n"
    card = PutFile(at=plan.nodes, path=f"{plan.run_dir}/run.json", content=content)
    return replace(plan, steps=(*plan.steps[:-1], card, plan.steps[-1]))


def whereabouts(card: Mapping[str, Any]) -> Whereabouts:
    return Whereabouts(
        run_id=card["run_id"],
        run_dir=card["run_dir"],
        train=card["train"],
        python=card["python"],
        nodes=tuple(target(record) for record in card["nodes"]),
        kube=kube_place(card.get("kube")),
    )


def kube_place(record: Mapping[str, Any] | None) -> KubePlace | None:
    if record is None:
        return None
    return KubePlace(**{**record, "pull_secrets": tuple(record["pull_secrets"])})


def target(record: Mapping[str, Any]) -> Target:
    return Target(node=record["node"], via=tuple(record["via"]))


def seen_from(card: Mapping[str, Any], via: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The card with the ways by which this controller reaches the nodes."""

    def own(record: Mapping[str, Any]) -> dict[str, Any]:
        return {"node": record["node"], "via": list(via.get(record["node"], record["via"]))}

    return {
        **card,
        "node0": own(card["node0"]),
        "nodes": [own(record) for record in card["nodes"]],
    }
