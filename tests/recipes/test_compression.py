"""Compressed gradients, or averaged weights: what travels, and that ranks learn as without."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

from orch_training.arguments import communication_requirements
from orch_training.local_sgd import ranks_of_nodes

from tests.support.jobs import SCRIPTS, run_ranks

WEIGHT_BYTES = 64 * 64 * 4


@pytest.fixture(scope="module")
def fitted() -> dict[str, dict[str, Any]]:
    found = {}
    for kind in ("none", "bf16", "powersgd", "local"):
        results = run_ranks(SCRIPTS / "compressed_ddp.py", kind, 1, ranks=2)
        found[kind] = json.loads(results[0][1].splitlines()[-1])
    return found


@pytest.mark.parametrize(("kind", "apart"), [("bf16", 0.05), ("powersgd", 0.5), ("local", 0.5)])
def test_ranks_stay_alike_and_learn(fitted: dict[str, dict[str, Any]], kind: str, apart: float) -> None:
    losses, plain = fitted[kind]["losses"], fitted["none"]["losses"]
    assert fitted[kind]["same"]
    assert losses[0] == plain[0]
    assert losses != plain
    assert losses[-1] < losses[0] / 4
    assert losses[-1] == pytest.approx(plain[-1], rel=apart)


def test_buckets_take_turns_in_powersgd() -> None:
    """Their collectives met in different orders, and gloo ended the process."""
    results = run_ranks(SCRIPTS / "compressed_ddp.py", "powersgd", 6, ranks=2)
    assert json.loads(results[0][1].splitlines()[-1])["same"]


def test_bf16_halves_what_travels(fitted: dict[str, dict[str, Any]]) -> None:
    sent = fitted["bf16"]["sent"]
    assert {tuple(one) for one in sent} == {("torch.bfloat16", WEIGHT_BYTES // 2)}


def test_powersgd_sends_all_first_and_a_fraction_later(fitted: dict[str, dict[str, Any]]) -> None:
    bytes_sent = [size for _, size in fitted["powersgd"]["sent"]]
    assert bytes_sent[0] == WEIGHT_BYTES
    assert 0 < sum(bytes_sent[-3:]) < WEIGHT_BYTES / 2


def test_local_sgd_sends_weights_at_every_fourth_step(fitted: dict[str, dict[str, Any]]) -> None:
    whole_steps, averages, last = 10, 8, 1
    sent = [size for _, size in fitted["local"]["sent"]]
    assert sent == [WEIGHT_BYTES] * (whole_steps + averages + last)
    assert fitted["local"]["changed"]  # ranks had gone ways of their own since the last average


def test_ranks_of_a_node_keep_together() -> None:
    assert ranks_of_nodes(["b", "b", "a", "a", "b"]) == [[0, 1, 4], [2, 3]]


@pytest.mark.parametrize(("kind", "period"), [("none", 1), ("none", -1), ("bf16", 4)])
def test_a_period_that_cannot_be_is_refused(kind: str, period: int) -> None:
    assert any(violated for violated, _ in communication_requirements(kind, period))


@pytest.mark.parametrize(("kind", "wrong"), [("none", False), ("powersgd", False), ("fp8", True)])
def test_other_kinds_are_refused(kind: str, wrong: bool) -> None:
    assert any(violated for violated, _ in communication_requirements(kind, 0)) is wrong
