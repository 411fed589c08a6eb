"""`orch data`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import RUNS_DIR, AsJson, RunsDir

app = typer.Typer(help="Data for training.", no_args_is_help=True)


class Kind(str, Enum):
    text = "text"
    wikipedia = "wikipedia"


@app.callback()
def data() -> None:
    """Data for training."""


@app.command()
def prepare(
    kind: Annotated[
        Kind,
        typer.Argument(help="text: documents between blank lines; wikipedia: a dump, .xml[.bz2]."),
    ],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="One file of this machine, which the nodes are sent; or files and folders of .txt "
            "files as the nodes see them.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder for the data, on the nodes.")],
    inventory: Annotated[str, typer.Option(help="Path or name of an Ansible inventory.")] = "local",
    nodes: Annotated[
        str | None, typer.Option(metavar="N|PATTERN", help="As for `orch train`.")
    ] = None,
    exclude: Annotated[str | None, typer.Option(metavar="PATTERN", help="Nodes to leave out.")] = (
        None
    ),
    ppn: Annotated[str, typer.Option(metavar="N|auto", help="Ranks on each node.")] = "auto",
    stack: Annotated[str, typer.Option(help="The set of versions to run on.")] = "current",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of the recipe bert-data: shards, ..."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="A new run; what is in --out is kept all the same.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, as a shell script.")
    ] = False,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Turn text into sharded, tokenized, masked Parquet for bert-pretrain, in parallel.

    What is done already is not done again: the same command carries on.
    """
    from orchestrator.cli.running import show_or_run
    from orchestrator.cli.train import number_or_auto
    from orchestrator.operations import data as operation
    from orchestrator.operations import train
    from orchestrator.train_request import TrainRequest

    request = TrainRequest(
        recipe=operation.RECIPE,
        inventory=inventory,
        nodes=nodes,
        exclude=exclude,
        ppn=number_or_auto(ppn),
        stack=stack,
        precision="fp32",
        settings={},
        fresh=fresh,
    )
    plan = operation.plan(
        request,
        kind=kind.value,
        inputs=inputs,
        out=out,
        pairs=tuple(settings or ()),
        runs_dir=runs_dir,
    )
    show_or_run(plan, runs_dir, train.start, dry_run=dry_run, as_json=as_json)
