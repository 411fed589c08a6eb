"""The table of `orch runs`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from orch_node.protocol.events import Progress
from orch_node.protocol.node_reports import RunReport
from orch_node.protocol.outcome import DONE, FAILED, Failure, Outcome

from orchestrator.report.run_list import array_text, different_arguments, text
from orchestrator.runs import store
from orchestrator.runs.outcome import outcome_of
from orchestrator.runs.rows import RunRow, cause, row_of
from tests.support.recorded import RUN_RECORD, make_run

NOW = RUN_RECORD.created + 7200
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/me/q.py", line 7, in f\nValueError: 1\nof two lines'
FAILED_OUTCOME = Outcome(state=FAILED, first_failure=Failure(rank=0, text=TRACEBACK), started=2.0, ended=67.0)
DONE_OUTCOME = Outcome(state=DONE, started=2.0, ended=67.0)
TRAINING = Progress(phase="train", step=15, steps=30, loss=0.5)


def make_row(number: int = 0, *arguments: str, state: str = "done", wait: str = "", **report: Any) -> RunRow:
    record = replace(RUN_RECORD, run_id=f"run-{number}", arguments=arguments, name="sweep" if number else "")
    return row_of(record, RunReport(started=2.0, **report), state=state, nodes=(), folder="", wait=wait)


ROWS = (
    make_row(
        0,
        "--lr",
        "0.1",
        "--seed=1",
        outcome=DONE_OUTCOME,
        result={"after": {"f1": 31.25, "tokens": 1234567}, "train_seconds": 3},
    ),
    make_row(1, "--lr", "0.2", "--seed=1", state="failed", outcome=FAILED_OUTCOME, progress=TRAINING),
    make_row(2, "--lr", "0.2", "--seed=1", state="running", progress=TRAINING, is_nan=True),
    make_row(3, "--lr", "-1", "--seed=1", state="queued", wait="waits for 1 free node"),
)


def test_table_has_what_differs_the_results_and_the_causes() -> None:
    assert text(ROWS, now=NOW, width=None).splitlines() == [
        "ID     NAME   STATE    AGE  DURATION  RANKS  ARGUMENTS  RESULT                    CAUSE",
        "run-0         done     2h   01:05     1      lr=0.1     f1 31.25, tokens 1234567",
        "run-1  sweep  failed   2h   01:05     1      lr=0.2     train 15/30, loss 0.5     q.py, line 7: ValueError: 1",
        "run-2  sweep  running  2h   2:00:00   1      lr=0.2     train 15/30, loss NaN",
        "run-3  sweep  queued   2h             1      lr=-1                                waits for 1 free node",
    ]
    for end, expected in (
        ("sys.exit('no data')", "code 1: sys.exit('no data')"),
        ("error: no data", "error: no data"),
        ("train.py: error: argument --lr: invalid float value: 'x'", "value: 'x'"),
    ):
        assert cause(Failure(rank=1, node="n", code=1, text=end)).endswith(expected)


def test_arguments_are_compared_by_name_between_runs_of_one_script() -> None:
    rows = [
        make_row(0, "preset=demo", "lr=1", "data.txt"),
        make_row(1, "preset=demo", "--lr=2", "data.txt", "--sizes", "1", "2", "--fast"),
        replace(make_row(2, "--lr", "3"), recipe="other"),
    ]
    assert different_arguments(rows) == {"run-0": "lr=1", "run-1": "lr=2 sizes=1 2 fast", "run-2": ""}


def test_command_that_compares_an_array_names_the_folder_of_runs(tmp_path: Path) -> None:
    outcomes = [outcome_of(store.load(make_run(tmp_path, f"sweep-{number}", ranks=2))) for number in (1, 2)]
    assert array_text(outcomes).splitlines()[2:] == [f"to compare them: orch runs --runs-dir {tmp_path} compare sweep"]
