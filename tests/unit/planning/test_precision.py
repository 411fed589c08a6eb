"""The precision of a run, as the plan or the ranks choose it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orch_node.protocol.layout import AUTO, PRECISION_PLACEHOLDER, RunPrecision
from orch_node.rank import computation
from orch_node.rank.checks import RankError
from orch_node.standalone import facts

from orchestrator.errors import PlanError
from orchestrator.load.records import InvalidResponse, validate
from orchestrator.model.cluster import Node
from orchestrator.model.facts import Facts
from orchestrator.model.recipe import Recipe
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.software import choose_precision
from tests.conftest import make_facts, make_node
from tests.support.layouts import make_layout
from tests.support.node_responses import make_reported_facts
from tests.support.recorded import RUN_RECORD

RECIPE = Recipe(name="qa", script="qa.py", precisions={"bf16": ("--bf16",), "fp32": ("--no-bf16",)})


def resume_in(precision: str) -> Resume:
    return Resume(record=replace(RUN_RECORD, run_id="old", precision=precision), state="failed")


def make_nodes(*flags: str) -> tuple[Node, ...]:
    """Return one node for each flag; "" is one without BF16 instructions."""
    return tuple(
        make_node(f"n{number}", make_facts(flags=("avx2", flag) if flag else ("avx2",)))
        for number, flag in enumerate(flags)
    )


def choose(*flags: str, recipe: Recipe = RECIPE, resume: Resume | None = None, **request: Any) -> Any:
    return choose_precision(recipe, make_nodes(*flags), TrainRequest(recipe="qa", **request), resume)


def test_auto_is_the_fastest_precision_of_all_nodes() -> None:
    for flags, expected in (
        (("avx512_bf16",), "bf16 (avx512_bf16 on n0)"),
        (("bf16",), "bf16 (bf16 on n0)"),  # arm
        (("amx_bf16", "avx512_bf16"), "bf16 (amx_bf16 and avx512_bf16 on all 2 nodes)"),  # two kinds
        (("",), "fp32 (n0 has no BF16 instructions)"),  # none
        (("avx512_bf16", "", "amx_bf16"), "fp32 (n1 has no BF16 instructions)"),  # one node of three
        (("", "", "amx_bf16"), "fp32 (n0, n1 have no BF16 instructions)"),  # two nodes of three
    ):
        (decision,) = choose(*flags).decisions
        assert decision.describe() == f"precision: {expected}"
    result = choose()  # no node is known: the ranks decide
    assert result.value == AUTO
    assert "otherwise fp32" in result.decisions[0].reason


def test_recipe_with_one_precision_requires_it() -> None:
    recipe = replace(RECIPE, precisions={"bf16": ()})
    assert choose("avx512_bf16", recipe=recipe).value == "bf16"
    with pytest.raises(PlanError, match=r"the only one of recipe 'qa'.*n0 has no BF16"):
        choose("", recipe=recipe)
    assert choose("", recipe=recipe, allow_slow_bf16=True).value == "bf16"


def test_requested_bf16_needs_instructions_or_permission_to_emulate() -> None:
    with pytest.raises(PlanError, match="n0 has no BF16 instructions") as exc_info:
        choose("", precision="bf16")
    assert "--precision fp32" in exc_info.value.hint
    assert "--allow-slow-bf16" in exc_info.value.hint
    emulated = choose("", precision="bf16", allow_slow_bf16=True)
    assert emulated.value == "bf16"
    assert "SLOW" in emulated.decisions[0].reason
    with pytest.raises(PlanError, match="--allow-slow-bf16 has no effect: the precision is fp32"):
        choose("", allow_slow_bf16=True)


def test_resumed_run_keeps_the_precision_of_its_checkpoint() -> None:
    result = choose("amx_bf16", resume=resume_in("fp32"))
    assert (result.value, result.decisions[0].reason) == ("fp32", "as in the last attempt")
    with pytest.raises(PlanError, match=r"as in the last attempt.*n0 has no BF16"):
        choose("", resume=resume_in("bf16"))
    assert choose("", resume=resume_in("bf16"), precision="fp32").value == "fp32"
    assert choose(resume=resume_in(AUTO)).value == AUTO


def test_facts_that_contradict_each_other_are_refused() -> None:
    validate(Facts, make_reported_facts(flags=["avx2", "avx512f", "avx512_bf16"]), "facts")
    with pytest.raises(InvalidResponse, match="avx512_bf16 without avx512f"):
        validate(Facts, make_reported_facts(flags=["avx2", "avx512_bf16"]), "facts")


def test_flags_of_arm_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(facts.CPU_ISA, raising=False)
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd i8mm bf16 dgh\n")
    monkeypatch.setattr(facts, "CPUINFO", tmp_path / "cpuinfo")
    assert facts.cpu_flags() == ["bf16"]


def choose_together(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], file: Path) -> list[list[str] | str]:
    """Return the command line, or the error, of each rank; rank N's CPU has the Nth flag."""
    rank_local = threading.local()
    monkeypatch.setattr(facts, "cpu_flags", lambda: [rank_local.flag])
    torch = pytest.importorskip("torch")
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    arguments = {"bf16": ("--bf16",), "fp32": ("--fp32",)}
    nodes = [f"n{rank}" for rank in range(len(flags))]
    layout = make_layout(*nodes, pinned=False, precision=RunPrecision(arguments=arguments, file=str(file)))

    def run(rank: int) -> list[str] | str:
        rank_local.flag = flags[rank]
        try:
            return computation.choose_precision(torch, layout, rank, ["s.py", PRECISION_PLACEHOLDER])
        except RankError as error:
            return str(error)

    with ThreadPoolExecutor(len(flags)) as pool:
        return list(pool.map(run, range(len(flags))))


def test_all_ranks_choose_the_same_precision_and_record_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for flags, expected in (
        (("avx512_bf16", "amx_bf16"), "bf16"),  # all ranks have it
        (("avx512_bf16", "avx2"), "fp32"),  # the last rank has not
        (("avx2", "amx_bf16", "bf16"), "fp32"),  # the first rank has not
        (("avx2",), "fp32"),  # one rank alone
    ):
        file = tmp_path / "-".join(flags) / "output" / "precision.txt"
        assert choose_together(monkeypatch, flags, file) == [["s.py", f"--{expected}"]] * len(flags)
        assert file.read_text() == f"{expected}\n"


def test_ranks_keep_the_precision_that_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "precision.txt"
    file.write_text("fp32\n")
    assert choose_together(monkeypatch, ("amx_bf16", "amx_bf16"), file) == [["s.py", "--fp32"]] * 2
    file.write_text("bf16\n")
    errors = choose_together(monkeypatch, ("amx_bf16", "avx2"), file)
    assert len(set(map(str, errors))) == 1
    assert "n1 has no BF16 instructions. Resume with --precision fp32" in str(errors[0])


def test_spare_node_without_bf16_decides_a_new_run_only(tmp_path: Path) -> None:
    file = tmp_path / "precision.txt"
    precision = RunPrecision(arguments={}, file=str(file))
    assert computation.decide(precision, [], ("n9",)) == ("fp32", "n9 has no BF16 instructions")
    file.write_text("bf16\n")
    assert computation.decide(precision, [], ("n9",)) == ("bf16", "as in the checkpoint")
