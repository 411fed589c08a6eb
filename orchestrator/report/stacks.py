"""Stacks and mismatches with installed environments, as text, tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.model.decision import Finding
from orchestrator.model.hosts import grouped
from orchestrator.model.printable import counted
from orchestrator.report.listing import finding_lines, json_text, table
from orchestrator.stacks.compatibility import Environment, Machine, status
from orchestrator.stacks.stack import Stack

COLUMNS = ("name", "torch", "ipex", "bindings", "backends", "python", "state")
Checked = tuple[Environment, Stack, tuple[Finding, ...]]


def row(stack: Stack, machine: Machine) -> dict[str, Any]:
    """Return a stack as a row of a listing."""
    return {
        "name": stack.name,
        "torch": stack.torch,
        "ipex": stack.ipex or "-",
        "bindings": stack.bindings.version if stack.bindings else "-",
        "backends": list(stack.backends),
        "python": stack.python,
        "state": list(status(stack, machine)),
        "summary": stack.summary,
    }


def listing(stacks: Sequence[Stack], machine: Machine) -> str:
    """Return the table of the stacks."""
    return table([{**row(stack, machine), "state": "; ".join(status(stack, machine))} for stack in stacks], COLUMNS)


def as_json(stack: Stack, machine: Machine) -> str:
    """Return a stack with its state on this machine as JSON."""
    value = asdict(stack)
    if stack.end_of_life:
        value["end_of_life"]["since"] = stack.end_of_life.since.isoformat()
    value["state"] = list(status(stack, machine))
    return json_text("stack", stack=value)


def checked_as_json(checked: Sequence[Checked]) -> str:
    """Return the mismatches of the checked environments as JSON."""
    nodes = []
    for env, stack, mismatches in checked:
        records = [
            {"package": finding.subject, "what": finding.message, "why": finding.evidence, "hint": finding.hint}
            for finding in mismatches
        ]
        nodes.append({"name": env.name, "stack": stack.name, "mismatches": records})
    return json_text("check", nodes=nodes)


def checked_as_text(checked: Sequence[Checked]) -> str:
    """Return the mismatches, with the names of all environments that share the same ones."""
    groups = grouped(((stack.name, mismatches), env.name) for env, stack, mismatches in checked)
    lines = []
    for (stack_name, mismatches), names in groups.items():
        count = counted(len(mismatches), "mismatch") if mismatches else "no mismatch"
        lines += [f"{', '.join(names)}: {count} (looked at as stack '{stack_name}')", *finding_lines(mismatches)]
    return "\n".join(lines)
