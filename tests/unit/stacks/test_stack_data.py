"""The version matrix: what every stack's file has to hold, and what was settled in it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.load.stacks import stack_from
from orchestrator.paths import STACKS
from orchestrator.planning.launch import ccl_of, choose_backend
from orchestrator.stacks.matrix import XPU_ONLY_BINDINGS, index_of
from orchestrator.stacks.stack import BINDINGS, IPEX, PARITY_PERCENT, Stack, minor

STACKS_LOADED = load.all_stacks()
INTEL = [stack for stack in STACKS_LOADED if stack.name.startswith(("intel-", "torch-ccl-"))]
WITH_BINDINGS = [stack for stack in INTEL if stack.bindings]

# torch -> (IPEX, oneccl_bind_pt, oneCCL), as the documents settle it.
MATRIX = {
    "1.10.0": ("1.10.100", "1.10.0", "2021.2.1"),
    "1.11.0": ("1.11.200", "1.11.0", "2021.5.2"),
    "1.12.0": ("1.12.0", "1.12.0", "2021.5.2"),
    "1.12.1": ("1.12.300", "1.12.100", "2021.5.2"),
    "1.13.0": ("1.13.0", "1.13.0", "2021.7.1"),
    "1.13.1": ("1.13.100", "1.13.0", "2021.7.1"),
    "2.0.0": ("2.0.0", "2.0.0", "2021.7.1"),
    "2.0.1": ("2.0.100", "2.0.0", "2021.7.1"),
    "2.1.0": ("2.1.0", "2.1.0", "2021.9"),
    "2.1.1": ("2.1.100", "2.1.0", "2021.9"),
    "2.2.0": ("2.2.0", "2.2.0", "2021.9"),
    "2.3.0": ("2.3.100", "2.3.0", "2021.11"),
    "2.4.0": ("2.4.0", "2.4.0", "2021.12"),
    "2.5.0": ("2.5.0", "2.5.0", "2021.13.1"),
    "2.6.0": ("2.6.0", "2.6.0", "2021.13.1"),
    "2.7.0": ("2.7.0", "2.7.0", "2021.14"),
}


def names(stack: Stack) -> str:
    return stack.name


def test_every_row_of_the_matrix_is_a_stack() -> None:
    found = {
        s.torch: (s.ipex, s.bindings.version.removesuffix("+cpu"), s.bindings.oneccl)
        for s in WITH_BINDINGS
        if s.bindings
    }
    assert found == MATRIX


@pytest.mark.parametrize("minor_release", range(6, 16))
def test_every_torch_that_the_bindings_build_for_has_a_stack(minor_release: int) -> None:
    ours = [s for s in STACKS_LOADED if s.bindings and s.bindings.built_by == "orch"]
    found = [s for s in ours if minor(s.torch) == (2, minor_release)]
    assert [s.bindings.version for s in found if s.bindings] == [f"{found[0].torch}+orch.10"]
    assert found[0].backends == ("ccl", "gloo")


def test_the_newest_comes_first() -> None:
    assert [s.name for s in STACKS_LOADED[:3]] == ["current", "torch-2.15", "torch-2.14"]
    assert STACKS_LOADED[-1].name == "torch-ccl-1.10"


@pytest.mark.parametrize("stack", STACKS_LOADED, ids=names)
def test_every_fact_has_its_source(stack: Stack) -> None:
    facts = {"python", "flags", "indexes", *stack.requirements}
    facts |= {"module", "setvars", "oneccl", BINDINGS} if stack.bindings else set()
    facts |= {"end_of_life"} if stack.end_of_life else set()
    assert set(stack.sources) == facts
    assert all(stack.sources.values())


@pytest.mark.parametrize("stack", STACKS_LOADED, ids=names)
def test_what_is_not_on_pypi_has_an_index(stack: Stack) -> None:
    if stack.ipex and Version(stack.ipex) < Version("2.6"):
        assert index_of(stack, IPEX)
    if stack in WITH_BINDINGS:
        index = index_of(stack, BINDINGS)
        assert index is not None
        assert index.only_there
        assert "xpu" not in index.url
    torch = index_of(stack, "torch")
    assert torch is not None
    assert torch.url == "https://download.pytorch.org/whl/cpu"


@pytest.mark.parametrize("stack", WITH_BINDINGS, ids=names)
def test_bindings_are_cpu_wheels_of_the_stacks_torch(stack: Stack) -> None:
    assert stack.bindings is not None
    version, _, local = stack.bindings.version.partition("+")
    assert local == "cpu"
    assert version not in XPU_ONLY_BINDINGS
    assert minor(version) == minor(stack.torch)
    assert stack.requirements[BINDINGS] == stack.bindings.version
    old = minor(stack.torch) < (1, 12)
    assert stack.bindings.module == ("torch_ccl" if old else "oneccl_bindings_for_pytorch")
    assert stack.name.startswith("torch-ccl-" if old else "intel-")
    assert stack.bindings.setvars == "env/setvars.sh"
    assert stack.backends == ("ccl", "gloo")


@pytest.mark.parametrize("stack", INTEL, ids=names)
def test_ipex_is_of_the_stacks_torch_and_has_ended(stack: Stack) -> None:
    assert stack.ipex is not None
    assert minor(stack.ipex) == minor(stack.torch)
    assert stack.end_of_life is not None
    assert stack.end_of_life.since in (dt.date(2025, 12, 31), dt.date(2026, 3, 30))


# transformers and accelerate: (flag, first version with it, first without)
FLAGS = [
    ("--ddp_backend ccl", "4.29.0", "5.1.0"),
    ("--use_ipex", "4.20.0", "4.53.0"),
    ("--no_cuda", "0", "5.0.0"),
    ("--use_cpu", "4.32.0", "99"),
]


@pytest.mark.parametrize("stack", STACKS_LOADED, ids=names)
def test_flags_are_those_that_its_transformers_honours(stack: Stack) -> None:
    version = Version(stack.requirements["transformers"])
    honoured = [name for name, since, gone in FLAGS if Version(since) <= version < Version(gone)]
    if stack.bindings is None:
        honoured.remove("--ddp_backend ccl")
    assert list(stack.flags) == honoured
    if stack.ipex:
        assert Version(stack.requirements["accelerate"]) < Version("1.8")


def test_current_gets_its_bindings_with_the_backend_ccl(tmp_path: Path) -> None:
    text = (STACKS / "current.toml").read_text()
    with_ccl = tmp_path / "current.toml"
    backends = text[text.index("backends = ") :].splitlines()[0]
    with_ccl.write_text(text.replace(backends, 'backends = ["ccl", "gloo"]'))
    assert stack_from(with_ccl).requirements[BINDINGS] == "2.13.0+orch.10"
    with_ccl.write_text(text.replace(backends, 'backends = ["gloo"]'))
    assert BINDINGS not in stack_from(with_ccl).requirements


def test_gloo_needs_no_bindings() -> None:
    stack = load.stack("intel-2.7").for_backend("gloo")
    assert BINDINGS not in stack.requirements
    assert BINDINGS in load.stack("intel-2.7").for_backend("ccl").requirements
    with pytest.raises(PlanError, match="has ccl and gloo"):
        load.stack("intel-2.7").with_own_backend("nccl")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("summary =", "sumary =", r"intel-2.7.toml, line 1: sumary: unknown key"),
        ('built_by = "Intel"', 'built_by = "me"', r"bindings.built_by: has the wrong type"),
        ("since = 2025-12-31", 'since = "soon"', r"end_of_life.since: has the wrong type"),
        ("oneccl =", "onecl =", r"bindings.onecl: unknown key"),
        ('option = "extra-index-url"', 'option = "index"', r"indexes.0.option: has the wrong type"),
    ],
)
def test_a_bad_stack_names_file_and_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "intel-2.7.toml"
    path.write_text((STACKS / path.name).read_text().replace(old, new, 1))
    with pytest.raises(RequestError, match=words):
        stack_from(path)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ipex_is_refused_where_it_was_not_seen_to_train_rightly(ranks: int) -> None:
    stack = load.stack("intel-2.5")
    with pytest.raises(PlanError, match=r"'intel-2.5'.* loss of 4\.68, .* 3\.03") as caught:
        stack.check_ipex(precision="bf16", through="accelerate", world_size=ranks)
    assert "--stack intel-2.8" in caught.value.hint


@pytest.mark.parametrize("way", ["Trainer", "Accelerator"])
def test_a_measured_loss_that_is_too_far_off_is_refused(way: str) -> None:
    stack = load.stack("intel-2.8")
    stack.check_ipex(precision="bf16", through="accelerate", world_size=8)
    bad = tuple(replace(p, worst_percent=2.1) if p.way == way else p for p in stack.parity)
    with pytest.raises(PlanError, match="has not been seen to train rightly"):
        replace(stack, parity=bad).check_ipex(precision="bf16", through="accelerate", world_size=8)


@pytest.mark.parametrize("stack", [one for one in INTEL if one.parity], ids=names)
def test_what_was_measured_of_ipex_is_whole_and_right(stack: Stack) -> None:
    ways = ("Trainer", "Accelerator", "DistributedDataParallel")
    assert [(one.way, one.ranks) for one in stack.parity] == [(w, r) for w in ways for r in (1, 2)]
    assert all(one.worst_percent <= PARITY_PERCENT for one in stack.parity)


def test_ranks_of_a_stack_with_ipex_keep_accelerate_from_moving_the_model() -> None:
    with_ipex, without = load.stack("intel-2.8"), load.stack("current")
    assert ("ACCELERATE_TORCH_DEVICE", "cpu") in choose_backend(with_ipex, (), "gloo", {}).env
    assert "ACCELERATE_TORCH_DEVICE" not in dict(choose_backend(without, (), "gloo", {}).env)


@pytest.mark.parametrize(
    ("precision", "through", "world_size"), [("bf16", "ddp", 4), ("fp32", "accelerate", 4), ("bf16", "accelerate", 1)]
)
def test_ipex_is_taken_where_it_trains_rightly(precision: str, through: str, world_size: int) -> None:
    stack = load.stack("intel-2.7")
    stack.check_ipex(precision=precision, through=through, world_size=world_size)


def test_a_stack_without_ipex_refuses_it() -> None:
    with pytest.raises(PlanError, match="stack 'current' has no IPEX"):
        load.stack("current").check_ipex(precision="fp32", through="ddp", world_size=1)


def test_only_intels_bindings_have_their_setvars_sourced() -> None:
    for stack in STACKS_LOADED:
        if stack.bindings and "ccl" in stack.backends:
            found = ccl_of(stack).setvars
            ours = stack.bindings.built_by == "orch"
            assert found == ("" if ours else f"{stack.bindings.module}/env/setvars.sh")
