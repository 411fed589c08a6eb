"""`orch data`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import typer
from typer.models import ParameterInfo

from orchestrator.cli import groups
from orchestrator.cli.app import App
from orchestrator.cli.groups import Group
from orchestrator.cli.output import OUTPUT, Output
from orchestrator.cli.request import PANELS
from orchestrator.planning.request import TrainRequest

app = App(help="Data for training: prepare text for bert-pretrain.", no_args_is_help=True)
RECIPE = "bert-data"


class Kind(str, Enum):
    text = "text"
    wikipedia = "wikipedia"


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What becomes data, and where that goes."""

    kind: Kind
    inputs: tuple[Path, ...]
    out: Path


def some(panel: str, *names: str) -> dict[str, ParameterInfo]:
    """Some options of `orch train`."""
    return {name: PANELS[panel][name] for name in names}


DATA = Group(
    kind=Data,
    panels={
        "Data": {
            "kind": typer.Argument(
                metavar="text|wikipedia", help="text: documents between blank lines; wikipedia: a dump, .xml[.bz2]."
            ),
            "inputs": typer.Argument(
                metavar="FILE",
                help="One file of this machine, which the nodes are sent; or files and folders of "
                ".txt files as the nodes see them.",
            ),
            "out": typer.Option(metavar="FOLDER", help="The folder for the data, on the nodes."),
        }
    },
)
REQUEST = Group(
    kind=TrainRequest,
    panels={
        "What": {
            "settings": typer.Option(
                metavar="KEY=VALUE", help="Of the recipe bert-data: shards, ...; may be repeated."
            ),
            "stack": PANELS["What"]["stack"],
        },
        "Where": some("Where", "inventory", "nodes", "exclude"),
        "Ranks": some("Ranks", "ppn"),
        "Restarts": {"fresh": typer.Option(help="A new run; what is in --out is kept all the same.")},
    },
    fixed={"recipe": RECIPE, "precision": "fp32"},
)
PRINTED_BY = ("runs_dir", "show", "verbose", "dry_run", "as_json")
PRINTED = Group(kind=Output, panels={"Output": {name: OUTPUT[name] for name in PRINTED_BY}})


@app.callback()
def data() -> None:
    """Data for training."""


def prepare(data: Data, request: TrainRequest, output: Output) -> None:
    """Turn text into sharded, tokenized, masked Parquet for bert-pretrain, in parallel.

    What is done already is not done again: the same command carries on.
    """
    from orchestrator.cli.running import show_or_run
    from orchestrator.operations import data as operation
    from orchestrator.operations import train

    request = replace(request, runs_dir=output.runs_dir)
    plan = operation.plan(request, kind=data.kind.value, inputs=data.inputs, out=data.out)
    show_or_run(plan, output, train.start)


app.command()(groups.command(prepare, data=DATA, request=REQUEST, output=PRINTED))
