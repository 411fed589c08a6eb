"""What the role `fabric` says of the nodes -> their records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.load.facts import NodeRecord, NotWhatANodeSays, ProofFacts, Verified, checked, written
from orchestrator.load.node_values import Digest, FromNode, Host, Token

TASK = "Try the fabrics"


class Answer(FromNode):
    """What `node.py prove` prints: `key` names what was tried; node -> fabric -> proof."""

    key: Digest
    nodes: dict[Host, dict[Token, ProofFacts]]


def parse(name: str, result: Mapping[str, Any]) -> Answer:
    """The result of the command that tried them. Raises NotWhatANodeSays."""
    try:
        said = json.loads(str(result.get("stdout", "")))
    except (ValueError, RecursionError):
        raise NotWhatANodeSays(f"{name} does not say which fabrics carry traffic") from None
    return checked(Answer, said, f"{name} does not say which fabrics carry traffic")


def with_proofs(record: NodeRecord, proofs: Mapping[str, ProofFacts], key: str) -> str:
    """The record with what was proved, as text."""
    verified = (record.verified or Verified()).model_copy(update={"fabrics": key})
    return written(record.model_copy(update={"proved": dict(proofs), "verified": verified}))
