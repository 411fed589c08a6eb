"""Check the names of runs and of the files of ranks."""

from __future__ import annotations

import pytest
from orch_node.protocol import files
from orch_node.protocol.record import parse, render
from orch_node.protocol.values import ProtocolError

from orchestrator.load.inputs import site_of
from tests.conftest import HOSTILE_TEXTS
from tests.support.hostile import UNSAFE_NAMES
from tests.support.recorded import RUN_RECORD as RECORD


def test_run_id_is_a_name_and_no_path() -> None:
    for name in UNSAFE_NAMES:
        assert not files.is_run_id(name)
        with pytest.raises(ProtocolError, match="run_id"):
            parse({**render(RECORD), "run_id": name})


def test_run_id_is_valid_for_any_recipe_name() -> None:
    for recipe in (*HOSTILE_TEXTS, "../..", "x" * 300):
        assert files.is_run_id(site_of(None, recipe, "/runs", train="/train").run_id)


def test_rank_that_a_file_is_of() -> None:
    for name, rank in (
        ("rank-0.log", 0),
        ("rank-12.metrics.jsonl", 12),
        ("rank-0.txt", None),
        ("rank-01.log", None),
        ("rank-٣.log", None),
        ("../rank-0.log", None),
        ("rank-0.log\n", None),
    ):
        assert files.rank_of(name) == rank
