"""The files and programs that the pages show are read by what reads such files."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from orch_node.protocol.events import lines
from pydantic import TypeAdapter

from docs.tools import events
from orchestrator.load import backends, recipes
from orchestrator.load.backends import BackendTable
from orchestrator.load.files import read_toml, tomllib
from orchestrator.load.inventory import ask_ansible
from orchestrator.load.limits import limits
from orchestrator.load.recipe_file import RecipeFile
from orchestrator.targets.kubernetes.load import kube_patch, kube_settings
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.slurm.load import slurm_settings
from tests.pages import PAGES, Block, blocks
from tests.unit.project.test_docs import named
from tests.unit.targets.kubernetes.test_plan_kube import SITE, decide, objects

CHECKED = "checked as: "
ALL = [(page, block) for page in PAGES for block in blocks(page)]
SHOWN = [(page, block) for page, block in ALL if block.mark.startswith(CHECKED)]
PROGRAMS = [(page, block) for page, block in ALL if block.language == "python"]
OURS = re.compile(r"orch_node|orch_training")
PLUGINS = TypeAdapter(dict[str, list[BackendTable]])


def an_inventory(path: Path) -> None:
    assert ask_ansible(path).hosts


def variables(path: Path) -> None:
    values = yaml.safe_load(path.read_text())
    assert values.keys() <= {"orch_limits"}, "another variable needs its reader here"
    limits("node0", values)


def for_slurm(path: Path) -> None:
    found = slurm_settings(path, (), {})
    found.check()
    assert found.sbatch or found.image


def for_kubernetes(path: Path) -> None:
    found = kube_settings(path, [])
    found.check()
    assert objects(decide("job", kube=replace(found, context=None)))


def entry_points(path: Path) -> None:
    (groups,) = tomllib.loads(path.read_text())["project"].values()
    assert groups.keys() <= {backends.GROUP, recipes.ENTRY_POINTS}


def a_backend(path: Path) -> None:
    values: dict[str, object] = {}
    exec(path.read_text(), values)
    BackendTable.model_validate(values["BACKEND"])


def plugins(path: Path) -> None:
    assert PLUGINS.validate_python(tomllib.loads(path.read_text()))["plugins"]


def labels(path: Path) -> None:
    assert yaml.safe_load(path.read_text()).keys() == names.labels(SITE.run_id).keys()


READERS: dict[str, Callable[[Path], object]] = {
    "inventory": an_inventory,
    "variables of the inventory": variables,
    "orch-slurm.toml": for_slurm,
    "orch-k8s.toml": for_kubernetes,
    "recipe.toml": lambda path: read_toml(path, RecipeFile),
    "entry points": entry_points,
    "a backend": a_backend,
    "plug-ins of a stack": plugins,
    "a patch": kube_patch,
    "labels": labels,
}


@pytest.mark.parametrize(("page", "block"), SHOWN, ids=named)
def test_a_file_is_understood(page: Path, block: Block, tmp_path: Path) -> None:
    path = tmp_path / f"shown.{block.language.replace('yaml', 'yml')}"
    path.write_text(block.text + "\n")
    READERS[block.mark.removeprefix(CHECKED)](path)


def defined(module: str) -> set[str]:
    """The functions of a module, which is not imported: it may need seconds for torch."""
    found = importlib.util.find_spec(module)
    tree = ast.parse(Path(found.origin if found and found.origin else "").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("page", "block"), PROGRAMS, ids=named)
def test_a_program_is_python_and_finds_what_it_takes_of_orch(page: Path, block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and OURS.match(node.module or ""):
            (name,) = (one.name for one in node.names)
            if importlib.util.find_spec(module := f"{node.module}.{name}"):
                assert used(tree, name) <= defined(module)
            else:
                assert callable(getattr(importlib.import_module(str(node.module)), name))


def used(tree: ast.Module, name: str) -> set[str]:
    """What a program takes of a module."""
    taken = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {one.attr for one in taken if isinstance(one.value, ast.Name) and one.value.id == name}


def test_the_event_that_the_reference_shows_is_read() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", events.HEAD, re.DOTALL)
    assert lines.understood(shown).rank == json.loads(shown)["rank"]
