"""`orch data prepare`: a run of the recipe bert-data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import RequestError
from orchestrator.operations import train
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import TrainRequest

HERE = "local"


OWN = ("kind", "data_dir", "input_file", "input_files")  # settings that the command makes


def plan(request: TrainRequest, *, kind: str, inputs: Sequence[Path], out: Path) -> Plan:
    """`request`: of the recipe bert-data. Paths of this machine become absolute, those of other
    nodes stay as they are. Raises RequestError."""
    for pair in request.settings:
        if pair.partition("=")[0] in OWN:
            raise RequestError(f"--set {pair}: this command sets it.", hint="KIND, FILE... and --out say it.")
    here = request.inventory == HERE
    data_dir = out.absolute() if here else out
    pairs = (f"kind={kind}", f"data_dir={data_dir}", *request.settings)
    if len(inputs) == 1 and inputs[0].is_file():
        return train.plan(replace(request, settings=(f"input_file={inputs[0]}", *pairs)))
    named = [str(path.absolute() if here else path) for path in inputs]
    # A setting has one value: it replaces input_file, and all of them follow as words.
    pairs = (f"input_files={named[0]}", *pairs)
    return train.plan(replace(request, settings=pairs, script_args=("--input_files", *named)))
