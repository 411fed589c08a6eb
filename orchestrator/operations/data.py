"""`orch data prepare`: a run of the recipe bert-data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.operations import train
from orchestrator.plan import Plan
from orchestrator.train_request import TrainRequest

RECIPE = "bert-data"
HERE = "local"


def plan(
    request: TrainRequest,
    *,
    kind: str,
    inputs: Sequence[Path],
    out: Path,
    pairs: tuple[str, ...],
    runs_dir: Path,
) -> Plan:
    """Paths of this machine become absolute; those of other nodes stay as they are."""
    here = request.inventory == HERE
    data_dir = out.absolute() if here else out
    pairs = (f"kind={kind}", f"data_dir={data_dir}", *pairs)
    if len(inputs) == 1 and inputs[0].is_file():
        pairs = (f"input_file={inputs[0]}", *pairs)
    else:
        named = [str(path.absolute() if here else path) for path in inputs]
        # A setting has one value: it replaces input_file, and all of them follow as words.
        pairs = (f"input_files={named[0]}", *pairs)
        request = replace(request, script_args=("--input_files", *named))
    return train.plan(train.Asked(request=request, pairs=pairs, runs_dir=runs_dir))
