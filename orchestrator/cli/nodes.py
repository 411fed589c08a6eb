"""The command `orch nodes`."""

from __future__ import annotations

from orchestrator.cli.options import AsJson, print_error
from orchestrator.cli.provision import Inventory
from orchestrator.screen import print_text


def nodes(inventory: Inventory, as_json: AsJson = False) -> None:
    """List the nodes of an inventory, as recorded by `orch provision`."""
    from orchestrator.operations import nodes as operation
    from orchestrator.report import findings, listing
    from orchestrator.targets import registry
    from orchestrator.targets.interface import CheckRequest, ignore

    rows = operation.rows(inventory)
    cells = [{name: "-" if row[name] is None else row[name] for name in operation.COLUMNS} for row in rows]
    print_text(listing.as_json("nodes", rows) if as_json else listing.table(cells, operation.COLUMNS))
    node_findings = registry.target_at(inventory).check(CheckRequest(inventory=inventory), ignore)
    for line in findings.finding_lines(node_findings):
        print_error(line)
