"""The command `orch bench`."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.app import with_defaults
from orchestrator.cli.options import PANELS, RUNS_DIR, AsJson, Group, RunsDir, make_command, print_error
from orchestrator.cli.train import TARGET_GROUPS, TARGET_OPTION
from orchestrator.model.measurement import find_slow
from orchestrator.operations import bench as operation
from orchestrator.planning.request import NODES, RANKS, TRAINING, TrainRequest, parse_ppn
from orchestrator.report import bench as report
from orchestrator.report.page import write_page
from orchestrator.screen import print_text

PAGE = "bench.html"  # in the folder of the first run
PAGE_OPTION = typer.Option("--html", metavar="FILE", help=f"Page with charts. Default: {PAGE} of the first run.")
INVENTORY = typer.Argument(envvar="ORCH_INVENTORY", metavar="INVENTORY", help="Inventory. Default: this machine.")
RANK_OPTIONS = {
    "ppn": typer.Option(metavar="N", parser=parse_ppn, help="Ranks per node. Default: several numbers, one by one."),
    "backend": typer.Option(metavar="NAME", help="Process-group backend. Default: gloo, then ccl."),
    "fabric": typer.Option(metavar="NAME", help="Network for MPI and oneCCL. Default: auto, then each verified one."),
}


def bench(
    context: typer.Context,
    request: TrainRequest,
    runs_dir: RunsDir = RUNS_DIR,
    html: Annotated[Path | None, PAGE_OPTION] = None,
    as_json: AsJson = False,
    **target_options: Any,
) -> None:
    """Measure the nodes of a cluster, the links between them and the backends, in a few minutes.

    Later runs take the fastest backend and number of ranks per node from it.

    The exit code is 1 if nodes cannot reach each other.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the run, like Ctrl-C
    request = with_defaults(replace(request, options=tuple(target_options.values()), runs_dir=runs_dir), context)
    measurement, folder = operation.measure(request, print_error)
    slow = find_slow(measurement)
    print_text(report.as_json(measurement, slow) if as_json else report.as_text(measurement, slow))
    if measurement.closed_ports:
        print_error("hint: docs/how-to/firewall.md lists the connections that runs need.")
        raise typer.Exit(1)
    page = report.page(measurement, slow, f"Bench of {request.on or request.inventory}")
    print_error(f"page: {write_page(html or folder / PAGE, page)}")


bench_command = make_command(
    bench,
    request=Group(
        kind=TrainRequest,
        panels={
            "Arguments": {"inventory": INVENTORY},
            NODES: {"on": TARGET_OPTION, "nodes": PANELS[NODES]["nodes"], "exclude": PANELS[NODES]["exclude"]},
            RANKS: {"stack": PANELS[TRAINING]["stack"], **RANK_OPTIONS},
        },
        fixed={"recipe": "bench"},
    ),
    **TARGET_GROUPS,
)
