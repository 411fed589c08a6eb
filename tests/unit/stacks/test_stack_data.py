from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from packaging.version import Version

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.planning.software import check_recipe_fits
from orchestrator.stacks.compatibility import index_for
from orchestrator.stacks.stack import BINDINGS, IPEX, minor
from release.stack_tables import version_table

STACKS_LOADED = load.all_stacks()


def test_every_torch_that_the_bindings_build_for_has_a_stack() -> None:
    built = [stack for stack in STACKS_LOADED if stack.bindings and stack.bindings.built_by == "orch"]
    for minor_release in range(6, 16):
        (stack,) = [stack for stack in built if minor(stack.torch) == (2, minor_release)]
        assert stack.bindings.version == f"{stack.torch}+orch.10"
        assert stack.backends == ("ccl", "gloo")


def test_every_fact_has_its_source() -> None:
    for stack in STACKS_LOADED:
        facts = {"python", "flags", "indexes", *stack.requirements}
        facts |= {"module", "setvars", "oneccl", BINDINGS} if stack.bindings else set()
        facts |= {"end_of_life"} if stack.end_of_life else set()
        assert set(stack.sources) == facts
        assert all(stack.sources.values())


def test_packages_that_are_not_on_pypi_have_an_index() -> None:
    for stack in STACKS_LOADED:
        if stack.ipex and Version(stack.ipex) < Version("2.6"):
            assert index_for(stack, IPEX)
        if stack.bindings and stack.bindings.built_by == "Intel":
            index = index_for(stack, BINDINGS)
            assert index.only_there
            assert "xpu" not in index.url
        assert index_for(stack, "torch").url == "https://download.pytorch.org/whl/cpu"


# transformers and accelerate: (flag, first version with it, first without)
FLAGS = [
    ("--ddp_backend ccl", "4.29.0", "5.1.0"),
    ("--use_ipex", "4.20.0", "4.53.0"),
    ("--no_cuda", "0", "5.0.0"),
    ("--use_cpu", "4.32.0", "99"),
]


def test_flags_are_those_that_transformers_honours() -> None:
    for stack in STACKS_LOADED:
        version = Version(stack.requirements["transformers"])
        honoured = [name for name, since, end in FLAGS if Version(since) <= version < Version(end)]
        if stack.bindings is None:
            honoured.remove("--ddp_backend ccl")
        assert list(stack.flags) == honoured
        if stack.ipex:
            assert Version(stack.requirements["accelerate"]) < Version("1.8")
            assert minor(stack.ipex) == minor(stack.torch)


def test_check_ipex_accepts_only_what_trains_correctly() -> None:
    with pytest.raises(PlanError, match=r"bf16 .*'intel-2.5'.* loss of 4\.68 .* 3\.03") as error:
        load.stack("intel-2.5").check_ipex("bf16")
    assert "--stack intel-2.8" in error.value.hint
    for name, precision in (("intel-2.5", "fp32"), ("intel-2.7", "bf16"), ("intel-2.8", "bf16")):
        load.stack(name).check_ipex(precision)


def test_reference_page_has_the_table_of_all_stacks() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "stacks.md").read_text()
    assert version_table(STACKS_LOADED) in page, "replace the table by the output of `python -m release.stack_tables`"


def test_recipes_run_on_torch_2_4_and_newer() -> None:
    for name in ("bert-qa", "glue-mrpc", "bert-pretrain"):
        recipe, supported = load.recipe(name), set()
        for stack in STACKS_LOADED:
            with contextlib.suppress(PlanError):
                check_recipe_fits(recipe, stack)
                supported.add(stack.name)
        assert supported == {stack.name for stack in STACKS_LOADED if minor(stack.torch) >= (2, 4)}
