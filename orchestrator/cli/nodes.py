"""`orch nodes`."""

from __future__ import annotations

from orchestrator.cli.options import AsJson
from orchestrator.cli.provision import Inventory
from orchestrator.screen import say


def nodes(inventory: Inventory, as_json: AsJson = False) -> None:
    """Show what `orch provision` has recorded about the nodes."""
    from orchestrator.operations import nodes as operation
    from orchestrator.report import listing

    rows = operation.rows(inventory)
    say(listing.as_json("nodes", rows) if as_json else listing.table(rows, operation.COLUMNS))
