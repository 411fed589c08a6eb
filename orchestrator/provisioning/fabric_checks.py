"""Results of the role `fabric`, which checks over which fabrics the nodes can communicate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from orchestrator.files import short_digest
from orchestrator.load.facts import (
    Digest,
    FromNode,
    Host,
    InvalidResponse,
    NodeRecord,
    ProofFacts,
    Token,
    Verified,
    render_record,
    validate,
)

TASK = "Check the fabrics"  # of the role


class FabricResults(FromNode):
    """The output of `node.py check-fabric`."""

    key: Digest  # of what was checked
    nodes: dict[Host, dict[Token, ProofFacts]]  # node -> fabric -> result


def parse_results(name: str, result: Mapping[str, Any]) -> FabricResults:
    """Return the results that a node reports.

    Raises:
        InvalidResponse: if the output of the command is not what `node.py check-fabric` prints.
    """
    problem = f"{name} returned invalid results of the fabric checks"
    try:
        output = json.loads(str(result.get("stdout", "")))
    except (ValueError, RecursionError):
        raise InvalidResponse(problem) from None
    return validate(FabricResults, output, problem)


def record_with_results(record: NodeRecord, results: Mapping[str, ProofFacts], key: str) -> str:
    """Return the text of a node's record with its results."""
    verified = (record.verified or Verified()).model_copy(update={"fabrics": key})
    return render_record(record.model_copy(update={"proved": dict(results), "verified": verified}))


def checks_version(share: Path) -> str:
    """Return a digest of everything that decides the results; when it changes, the checks run again.

    Args:
        share: the folder with train/ and playbooks/.
    """
    lib = share / "train" / "lib"
    programs = [share / "train" / "node.py", *(lib / "orch_node" / "fabric").glob("*.py")]
    finder = ModuleFinder([str(lib)])
    for program in programs:
        finder.run_script(str(program))
    imported = [getattr(module, "__file__", None) for module in finder.modules.values()]
    role = share / "playbooks" / "roles" / "fabric"
    return short_digest(sorted({*programs, *(Path(file) for file in imported if file), *role.glob("*/*.yml")}), share)
