"""What provisioning changed, or would change, on each node, as text, a table and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orch_node.protocol.environment import DATA

from orchestrator.model.hosts import grouped
from orchestrator.model.printable import counted
from orchestrator.model.provision_report import Change, NodeReport, Report, Synced
from orchestrator.report.listing import finding_lines, json_text, table

OFFLINE = "Ranks on these nodes use only what was copied, without the hub; --env HF_HUB_OFFLINE=0 changes that."


def as_json(report: Report) -> str:
    """Return the provisioning report as JSON."""
    nodes = [node_record(node) for node in report.nodes]
    return json_text("provision", {"exit_code": report.exit_code, **asdict(report), "nodes": nodes})


def node_record(node: NodeReport) -> dict[str, Any]:
    """Return the report of a node as stored in JSON."""
    counts = {key: value for key, value in asdict(node).items() if key != "findings"}
    return {**counts, "problem": node.problem, "hint": node.hint, "changes": list(map(change_record, node.changes))}


def change_record(change: Change) -> dict[str, str]:
    """Return a change as stored in JSON."""
    return {"what": change.what, "is": change.is_, "should": change.should}


def text(report: Report) -> str:
    """Return the table of the nodes, hints, the drift if requested, and the final state."""
    rows = [{**asdict(node), "seconds": f"{node.seconds:.1f}"} for node in report.nodes]
    states = {"done": "all nodes are as they should be", "drift": "drift", "stopped": "stopped"}
    findings = [finding for node in report.nodes for finding in node.findings]
    lines = [table(rows, ("node", "ok", "changed", "failed", "seconds")), *finding_lines(findings)]
    if report.check and any(node.changes or not node.failed for node in report.nodes):
        lines += ["", drift_table(report)]
    if report.synced:
        lines += ["", *synced_lines(report.synced)]
    state = states.get(report.state, "failed")
    return "\n".join([*lines, "", f"{state} in {report.seconds:.1f} s; log: {report.log}"])


def synced_lines(synced: tuple[Synced, ...]) -> list[str]:
    """Return the size of each model and data set, and how a script finds it on the nodes."""
    lines = []
    for source in synced:
        size = f"{source.size / 1e6:.1f} MB, {counted(source.files, 'file')}"
        revision = f" at {source.revision[:12]}" if source.revision else ""
        lines += [f"{source.kind} {source.name}{revision}: {size}", f"  on the nodes: {source.path}"]
        if source.revision:
            call = "from_pretrained" if source.kind == "model" else "load_dataset"
            name, _, requested = source.name.partition("@")
            arguments = f'"{name}"' + (f', revision="{requested}"' if requested else "")
            lines.append(f"  in a script:  {call}({arguments})")
        elif source.kind == "data":
            lines.append(f'  in a script:  os.environ["{DATA}"] + "/{source.path.rpartition("/")[2]}"')
    if any(source.revision for source in synced):
        lines.append(OFFLINE)
    return lines


def drift_table(report: Report) -> str:
    """Return a table with a row for each distinct change, with the nodes that need it."""
    # Several tasks may report the same.
    nodes = grouped((change, node.node) for node in report.nodes for change in dict.fromkeys(node.changes))
    rows = [
        {"node": "all" if 1 < len(report.nodes) == len(names) else names, **change_record(change)}
        for change, names in nodes.items()
    ]
    return table(rows, ("node", "what", "is", "should")) if rows else "no drift"
