"""Check what ranks send with compressed gradients or averaged weights, and that they learn as without."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

from orch_training.arguments import CommunicationArguments
from orch_training.gradients import ranks_of_nodes

from tests.support.jobs import SCRIPTS, run_ranks

WEIGHT_BYTES = 64 * 64 * 4


def train(kind: str, layers: int) -> dict[str, Any]:
    """Train two ranks with a kind of compression, and return what rank 0 reports."""
    return dict(json.loads(run_ranks(SCRIPTS / "compressed_ddp.py", kind, layers, ranks=2)[0][1].splitlines()[-1]))


def test_ranks_learn_with_equal_weights_and_send_less() -> None:
    results = {kind: train(kind, 1) for kind in ("none", "bf16", "powersgd", "local")}
    uncompressed = results["none"]["losses"]
    for kind, tolerance in (("bf16", 0.05), ("powersgd", 0.5), ("local", 0.5)):
        losses = results[kind]["losses"]
        assert results[kind]["same"], kind
        assert losses[0] == uncompressed[0]
        assert losses != uncompressed
        assert losses[-1] < losses[0] / 4
        assert losses[-1] == pytest.approx(uncompressed[-1], rel=tolerance)
    assert {tuple(message) for message in results["bf16"]["sent"]} == {("torch.bfloat16", WEIGHT_BYTES // 2)}
    sizes = {kind: [size for _, size in result["sent"]] for kind, result in results.items()}
    assert sizes["powersgd"][0] == WEIGHT_BYTES, "whole gradients first, and a fraction later"
    assert 0 < sum(sizes["powersgd"][-3:]) < WEIGHT_BYTES / 2
    first_steps, averages, last_average = 10, 8, 1  # local SGD sends weights in each fourth step
    assert sizes["local"] == [WEIGHT_BYTES] * (first_steps + averages + last_average)
    assert results["local"]["changed"], "ranks have different weights before the last average"


def test_powersgd_reduces_buckets_in_the_same_order_on_all_ranks() -> None:
    """Train with several buckets; collectives in different orders would end the processes."""
    assert train("powersgd", 6)["same"]


@pytest.mark.parametrize(
    ("kind", "note"),
    [("powersgd", "pending error of PowerSGD"), ("local", "the optimizer's state of rank 0 alone"), ("bf16", "")],
)
def test_resumed_training_that_does_not_continue_exactly_has_a_note(kind: str, note: str) -> None:
    output = run_ranks(SCRIPTS / "compressed_ddp.py", kind, 1, 20, ranks=2)[0][1]
    assert [note in line for line in output.splitlines() if "without an interruption" in line] == [True] * bool(note)


def test_ranks_are_grouped_by_node() -> None:
    assert ranks_of_nodes(["b", "b", "a", "a", "b"]) == [[0, 1, 4], [2, 3]]


@pytest.mark.parametrize(
    ("kind", "period", "is_refused"), [("none", 1, True), ("bf16", 4, True), ("powersgd", 0, False)]
)
def test_invalid_kind_or_period_is_refused(kind: str, period: int, is_refused: bool) -> None:
    assert (
        any(violated for violated, _ in CommunicationArguments(kind, period).communication_requirements()) is is_refused
    )
