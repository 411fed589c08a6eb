"""The command `orch nodes`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson, print_error
from orchestrator.cli.provision import Inventory
from orchestrator.operations import nodes as operation
from orchestrator.report import findings, listing
from orchestrator.screen import print_text
from orchestrator.targets import registry
from orchestrator.targets.interface import CheckRequest

Live = Annotated[bool, typer.Option("--live", help="Query the nodes: load, free memory, and runs that use them.")]


def nodes(inventory: Inventory, live: Live = False, as_json: AsJson = False) -> None:
    """List the nodes of an inventory, as recorded by `orch provision`."""
    rows = operation.live_rows(inventory) if live else operation.rows(inventory)
    all_columns = operation.LIVE_COLUMNS if live else operation.COLUMNS
    columns = [name for name in all_columns if name != "gpus" or any(row[name] for row in rows)]
    cells = [{name: "-" if row[name] is None else row[name] for name in columns} for row in rows]
    print_text(listing.as_json("nodes", rows) if as_json else listing.table(cells, columns))
    if live:
        return
    node_findings = registry.target_at(inventory).check(CheckRequest(inventory=inventory))
    for line in findings.finding_lines(node_findings):
        print_error(line)
