"""Read the records of runs, of any version, describe their damage, and check the names of runs and of ranks' files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from orch_node.protocol import files
from orch_node.protocol.record import RunRecord, parse, render
from orch_node.protocol.values import ProtocolError

from orchestrator.load.inputs import site_of
from tests.conftest import HOSTILE_TEXTS
from tests.support.hostile import UNSAFE_NAMES
from tests.support.recorded import RUN_RECORD
from tests.support.recorded import RUN_RECORD as RECORD

LOCATION = {"job": "orch-r", "uid": 1000, "pull_secrets": ["a"]}
KUBERNETES_RECORD = replace(RUN_RECORD, target="kubernetes", location=LOCATION)


def stored(record: RunRecord, **changes: Any) -> dict[str, Any]:
    """Return a record as its file contains it, with other values."""
    return {**json.loads(json.dumps(render(record))), **changes}


def test_record_is_read_as_it_was_written() -> None:
    for record in (RUN_RECORD, KUBERNETES_RECORD):
        assert parse(stored(record)) == record
        assert parse(stored(record, colour="green")) == record, "fields of later versions are dropped"
    assert not {"target", "location"} & stored(RUN_RECORD).keys(), "earlier versions read it"


def test_error_names_the_key_of_a_damaged_record() -> None:
    for changes, key in (
        ({"schema": 2}, "schema 2"),
        ({"nodes": []}, "nodes"),
        ({"nodes": [{"node": "node0"}] * 2}, "nodes"),  # a node twice
        ({"node0": {"node": "another", "via": []}}, "node0"),
        ({"created": -1.0}, "created"),  # negative
        ({"layout": []}, "layout"),  # no ranks
    ):
        with pytest.raises(ProtocolError) as exc_info:
            parse(stored(RUN_RECORD, **changes))
        assert key in str(exc_info.value)


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
