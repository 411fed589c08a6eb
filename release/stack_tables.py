"""Print the table of docs/reference/stacks.md: `python -m release.stack_tables`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator import load
from orchestrator.stacks.stack import BINDINGS, Stack


def version_table(stacks: Sequence[Stack]) -> str:
    """Return the versions of all stacks as a Markdown table."""
    lines = [
        "| stack | Python | torch | IPEX | oneccl_bind_pt | oneCCL | module | transformers, "
        "accelerate | bindings from | end of life |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(version_cells(stack))} |" for stack in stacks)])


def version_cells(stack: Stack) -> list[str]:
    """Return the cells of a stack's row in the version table."""
    bindings, end_of_life = stack.bindings, stack.end_of_life
    origin = next((index.url for index in stack.indexes if BINDINGS in index.serves), "-")
    return [
        f"`{stack.name}`",
        stack.python,
        stack.torch,
        stack.ipex or "-",
        *([bindings.version, bindings.oneccl, f"`{bindings.module}`"] if bindings else ["-", "-", "-"]),
        f"{stack.requirements['transformers']}, {stack.requirements['accelerate']}",
        "bindings/ of this repository" if bindings and bindings.built_by == "orch" else origin,
        str(end_of_life.since) if end_of_life else "-",
    ]


if __name__ == "__main__":
    print(version_table(load.all_stacks()))
