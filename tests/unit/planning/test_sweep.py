"""Check which runs an array has, and what each of them gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import PlanError
from orchestrator.load import array_members
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.sweep import Member, max_active_runs, parse_lines, request_of


def labels(*axes: str, sample: int | None = None) -> list[str]:
    return [member.label for member in array_members(axes, sample)]


def test_array_has_a_run_for_each_combination() -> None:
    assert labels('x=a,"c,d","e"', 'y={"k"}') == ['x=a y={"k"}', 'x=c,d y={"k"}', 'x=e y={"k"}']
    assert labels('x=a, "c, d", e') == ["x=a", "x=c, d", "x=e"]
    assert labels("seed=1,2", "lr=.1,.2") == ["seed=1 lr=.1", "seed=1 lr=.2", "seed=2 lr=.1", "seed=2 lr=.2"]


def test_impossible_arrays_are_refused() -> None:
    for axes, problem in (
        (("seed",), "expected KEY=VALUE"),
        *((text, "expected KEY=VALUE") for text in (("seed=1,,2",), ("seed=",), ('seed="1,2',), ("seed=1\n,2",))),
        (("seed=1,2", "seed=3"), "names a setting twice"),  # repeated key
        ((f"seed={','.join(map(str, range(1001)))}",), "the limit is 1000"),  # too many runs
    ):
        with pytest.raises(PlanError, match=problem):
            array_members(axes, None)
    for axes in (("a=1,2%0",), ("a=1,2%2", "b=3%2")):
        with pytest.raises(PlanError):
            max_active_runs(axes)
    with pytest.raises(PlanError, match="has 4 combinations"):
        array_members(("a=1,2", "b=1,2"), 5)


def test_sample_is_drawn_from_all_combinations_and_repeatable() -> None:
    axes = [f"{name}={','.join(map(str, range(40)))}" for name in "abc"]
    sample = labels(*axes, sample=6)
    assert sample == labels(*axes, sample=6)
    assert len(set(sample)) == 6
    assert {label.split()[0] for label in sample} != {"a=0"}


def test_lines_of_a_file_are_split_as_in_a_shell() -> None:
    members = parse_lines("--lr 0.1 --name 'two words'\n\n# a comment\n--lr 0.2  # another\n", "runs.txt")
    assert [member.arguments for member in members] == [("--lr", "0.1", "--name", "two words"), ("--lr", "0.2")]
    assert members[0].label == "--lr 0.1 --name 'two words'"
    for text, problem in (("\n# only a comment\n", "no lines"), ("a\n'b\n", "runs.txt, line 2")):
        with pytest.raises(PlanError, match=problem):
            parse_lines(text, "runs.txt")


MEMBER = Member(values=(("lr", "0.1"), ("seed", "2")))


def request_with(*script_args: str) -> TrainRequest:
    return TrainRequest(recipe="train.py", script_args=script_args, array=("lr=0.1", "seed=2"), array_sample=1)


def test_script_gets_values_in_place_of_their_names_in_braces_and_others_as_options() -> None:
    request = request_with("--lr", "{lr}", "--name=run-{lr}-{seed}", "{}", "{other}")
    result = request_of(request, MEMBER, own_script=True)
    assert result.script_args == ("--lr", "0.1", "--name=run-0.1-2", "{}", "{other}")
    assert (result.array, result.array_sample) == ((), None)
    member = Member(values=(("a", "{b}"), ("b", "1")))
    assert request_of(request_with("{a}", "{b}"), member, own_script=True).script_args == ("{b}", "1")
    assert request_of(request_with("{lr}"), MEMBER, own_script=True).script_args == ("0.1", "--seed=2"), "at the end"


def test_recipe_gets_values_as_settings() -> None:
    request = TrainRequest(recipe="bert-qa", settings=("a=1",))
    assert request_of(request, MEMBER, own_script=False).settings == ("a=1", "lr=0.1", "seed=2")
    assert request_of(request, Member(arguments=("lr=0.3",)), own_script=False).settings == ("a=1", "lr=0.3")


def test_labels_have_no_secrets(tmp_path: Path) -> None:
    token = "hf_" + "a" * 20
    (tmp_path / "lines").write_text(f"--hf_token {token}\n")
    assert labels(f"hf_token={token}") == ["hf_token=<masked>"]
    assert labels(f"@{tmp_path}/lines") == ["--hf_token '<masked>'"]
