"""The command `orch data`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli.app import App, with_defaults
from orchestrator.cli.options import OUTPUT, PANELS, Group, Output, make_command
from orchestrator.cli.running import show_or_run
from orchestrator.errors import RequestError
from orchestrator.model.cluster import LOCAL
from orchestrator.operations import train
from orchestrator.planning.request import TrainRequest

app = App(help="Prepare training data for bert-pretrain.")
RECIPE = "bert-data"
DATA_SETTINGS = ("kind", "data_dir", "input_file", "input_files")  # that the command makes


REQUEST = Group(
    kind=TrainRequest,
    panels={
        "What": {
            "settings": typer.Option(
                metavar="KEY=VALUE", help="Setting of bert-data, such as shards=64; may be repeated."
            ),
            "stack": PANELS["What"]["stack"],
        },
        "Where": {name: PANELS["Where"][name] for name in ("inventory", "nodes", "exclude")},
        "Ranks": {"ppn": PANELS["Ranks"]["ppn"]},
    },
    fixed={"recipe": RECIPE, "precision": "fp32"},
)
PRINTED_BY = ("runs_dir", "show", "verbose", "dry_run", "as_json")
PRINTED = Group(kind=Output, panels={"Output": {name: OUTPUT[name] for name in PRINTED_BY}})


@app.callback()
def data() -> None:
    """Prepare training data."""


def prepare(
    context: typer.Context,
    request: TrainRequest,
    output: Output,
    kind: Annotated[
        Literal["text", "wikipedia"],
        typer.Argument(metavar="text|wikipedia", help="text: blank lines divide documents; wikipedia: .xml, .xml.bz2."),
    ],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="One file of this machine; or paths on the nodes: files, or folders of .txt files."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Output folder on the nodes.")],
) -> None:
    """Convert text into tokenized, masked Parquet shards for bert-pretrain, in parallel.

    Run the same command again to resume: finished shards are skipped.
    """
    request = with_defaults(replace(request, runs_dir=output.runs_dir), context)
    show_or_run(train.plan(request_of(kind, inputs, out, request)), output)


def request_of(kind: str, inputs: Sequence[Path], out: Path, request: TrainRequest) -> TrainRequest:
    """Return the request with the settings and arguments for the data.

    Paths on this machine are made absolute; paths on other nodes stay as they are.

    Raises:
        RequestError: if a setting contradicts the arguments.
    """
    for setting in request.settings:
        if setting.partition("=")[0] in DATA_SETTINGS:
            raise RequestError.about("setting-of-data", setting=setting)
    is_local = request.inventory == LOCAL
    folder, *paths = (path.absolute() if is_local else path for path in (out, *inputs))
    settings = (f"kind={kind}", f"data_dir={folder}", *request.settings)
    if len(inputs) == 1 and inputs[0].is_file():
        return replace(request, settings=(f"input_file={inputs[0]}", *settings))
    # A setting has one value. It replaces input_file, and all paths follow as arguments.
    settings = (f"input_files={paths[0]}", *settings)
    return replace(request, settings=settings, script_args=("--input_files", *map(str, paths)))


app.command()(make_command(prepare, request=REQUEST, output=PRINTED))
