from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.load.facts import NodeFacts
from orchestrator.load.files import read_toml
from orchestrator.load.inventory import HAS_PASSWORD, read_inventory
from orchestrator.load.recipes import RecipeFile, recipe_from
from orchestrator.load.records import parse_facts
from orchestrator.model.limits import GIB, Limits
from orchestrator.runs import store as runs
from tests.support.recorded import make_outcome, make_placement, make_plan

GOOD = """summary = "s"
script = "x.py"
paths = ["train_file"]

[arguments]
train_file = "data/a.json"

[precisions]
fp32 = []
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_paths_of_a_recipe_are_relative_to_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "recipe.toml", GOOD)
    recipe = recipe_from("mine", tmp_path)
    assert recipe.arguments["train_file"] == str(tmp_path / "data/a.json")
    assert recipe.script == str(tmp_path / "x.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("paths", "path"), r"recipe.toml, line 3: path: unknown key"),
        (GOOD.replace('summary = "s"\n', ""), "summary: is missing"),
        (GOOD.replace('"s"', "3"), "line 1: summary: has the wrong type"),
        (GOOD.replace("fp32 = []", "fp32 = 1"), "line 9: precisions.fp32: has the wrong type"),
        (GOOD + "[[[", r"at line 10"),
    ],
)
def test_a_bad_recipe_names_file_line_and_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_toml(write(tmp_path / "recipe.toml", text), RecipeFile)


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "recipe.toml", GOOD.replace("script =", "skript ="))
    with pytest.raises(RequestError) as caught:
        read_toml(path, RecipeFile)
    assert caught.value.hint == "Did you mean 'script'?"


def test_every_recipe_and_stack_that_travels_with_orch_loads() -> None:
    assert [load.recipe(name).name for name in load.recipe_folders()]
    assert "current" in load.stack_names()
    for name in load.stack_names():
        assert load.stack(name).name == name


def test_an_own_script_keeps_its_hostile_name(tmp_path: Path, hostile: str) -> None:
    folder = tmp_path / (hostile.replace("/", "") or "empty")
    folder.mkdir()
    script = write(folder / "a b$(c).py", "")
    assert load.recipe(str(script)).script == str(script)


def test_a_missing_script_is_not_taken_for_a_recipe() -> None:
    with pytest.raises(RequestError, match=r"There is no script 'nowhere/x.py'"):
        load.recipe("nowhere/x.py")


@pytest.mark.parametrize("pair", ["epochs", "=3", ""])
def test_settings_need_a_name_and_a_value(tmp_path: Path, pair: str) -> None:
    write(tmp_path / "recipe.toml", GOOD)
    with pytest.raises(RequestError, match="expected KEY=VALUE"):
        load.settings([pair], recipe_from("mine", tmp_path))


def test_a_data_file_must_exist(tmp_path: Path) -> None:
    write(tmp_path / "recipe.toml", GOOD)
    with pytest.raises(RequestError, match="file not found"):
        load.settings(["train_file=nowhere.json"], recipe_from("mine", tmp_path))


INVENTORY = """
all:
  children:
    fast:
      hosts:
        node10: {ansible_host: 10.0.0.10, api_token: secret-word}
        node2: {orch_python: /x/python}
    slow:
      hosts:
        a: {}
"""


def test_ansible_reads_the_inventory_in_its_order(tmp_path: Path) -> None:
    path = write(tmp_path / "hosts.yml", INVENTORY)
    hosts = read_inventory(path)
    assert list(hosts) == ["node10", "node2", "a"]
    assert hosts["node10"]["ansible_host"] == "10.0.0.10"
    assert hosts["node2"]["orch_python"] == "/x/python"


def test_only_harmless_variables_are_remembered(tmp_path: Path) -> None:
    read_inventory(write(tmp_path / "hosts.yml", INVENTORY))
    remembered = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert len(remembered) == 1
    assert "secret-word" not in remembered[0].read_text()


def test_a_changed_inventory_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "hosts.yml", INVENTORY)
    read_inventory(path)
    write(path, INVENTORY.replace("node10", "node11"))
    assert next(iter(read_inventory(path))) == "node11"


def test_variables_beside_an_inventory_file_belong_to_it(tmp_path: Path) -> None:
    path = write(tmp_path / "hosts.yml", INVENTORY)
    (tmp_path / "group_vars").mkdir()
    for port in (2222, 2223):
        write(tmp_path / "group_vars" / "all.yml", f"ansible_port: {port}\n")
        assert read_inventory(path)["a"]["ansible_port"] == port


def test_a_sudo_password_is_noticed_and_not_remembered(tmp_path: Path) -> None:
    text = INVENTORY.replace("a: {}", "a: {ansible_become_password: open-sesame}")
    hosts = read_inventory(write(tmp_path / "hosts.yml", text))
    assert [name for name, variables in hosts.items() if HAS_PASSWORD in variables] == ["a"]
    remembered = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert not [path for path in remembered if "open-sesame" in path.read_text()]


def test_limits_are_the_inventorys_where_it_names_them() -> None:
    limits = load.limits("a", {"orch_limits": {"disk_gb": 1, "skew_seconds": "60"}})
    assert limits == replace(Limits(), disk=GIB, skew=60.0)
    assert load.limits("a", {}) == Limits()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"disc_gb": 1}, "orch_limits.disc_gb of a: Extra inputs are not permitted"),
        ({"disk_gb": "much"}, "orch_limits.disk_gb of a: Input should be a valid number"),
        ([1], "orch_limits of a: "),
    ],
)
def test_a_wrong_limit_is_named(given: object, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        load.limits("a", {"orch_limits": given})
    assert "disk_gb" in caught.value.hint


def test_an_inventory_that_a_program_makes_is_asked_every_time(tmp_path: Path) -> None:
    path = write(tmp_path / "dynamic", '#!/bin/sh\necho \'{"all": {"hosts": ["\'$(date +%N)\'"]}}\'\n')
    path.chmod(0o755)
    assert read_inventory(path) != read_inventory(path)


def test_an_unreadable_inventory_is_said_in_ansibles_words(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"Ansible cannot read inventory .*: line 2: YAML"):
        read_inventory(write(tmp_path / "hosts.yml", "all: [\n"))


def test_facts_of_this_machine() -> None:
    cluster = load.cluster("local")
    (node,) = cluster.nodes
    assert node.local
    allowed = {cpu for core in node.facts.cores for cpu in core.cpus}
    assert allowed == os.sched_getaffinity(0)


def test_hardware_threads_of_one_core_are_one_core() -> None:
    cpus = [{"cpu": c, "core": c % 2, "socket": 0, "numa": 0} for c in range(4)]
    record: dict[str, object] = dict.fromkeys(("hostname", "python", "cpu_model"), "x")
    record |= {"flags": [], "cpus": cpus, "memory_bytes": 1, "shm_bytes": 1, "libraries": {}, "interfaces": {}}
    facts = parse_facts(NodeFacts.model_validate({**record, "packages": {}, "mpi": {}}))
    assert [core.cpus for core in facts.cores] == [(0, 2), (1, 3)]


def make_run(base: Path, run_id: str, *, key: str, state: str | None, at: float) -> None:
    folder = base / run_id
    folder.mkdir(parents=True)
    write(folder / "plan.json", json.dumps(make_plan(folder, [make_placement(0, 1)]) | {"key": key, "created": at}))
    if state:
        write(folder / "outcome.json", json.dumps(make_outcome(state.removeprefix("unbegun "))))
    if not (state or "").startswith("unbegun"):
        write(folder / "supervisor.json", json.dumps({"pid": 2**22 + 1, "started": at}))


@pytest.mark.parametrize(
    ("states", "carried_on"),
    [
        (["failed"], "run-0"),
        (["failed", "done"], None),
        (["done", "stopped"], "run-1"),
        (["preempted", "unbegun failed"], "run-0"),
        (["done", "unbegun failed"], None),
        (["unbegun failed"], None),
        ([None], "run-0"),
        ([], None),
    ],
)
def test_only_the_newest_unfinished_run_is_carried_on(
    tmp_path: Path, states: list[str | None], carried_on: str | None
) -> None:
    for index, state in enumerate(states):
        make_run(tmp_path, f"run-{index}", key="k", state=state, at=time.time() + index)
    make_run(tmp_path, "other", key="other", state="failed", at=time.time() + 99)
    resume = runs.unfinished(tmp_path, "k")
    assert (resume.run_id if resume else None) == carried_on
