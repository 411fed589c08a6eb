"""Load the files and programs that the pages show with the code that reads such files."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from orchestrator.files import tomllib
from orchestrator.load import definitions
from orchestrator.load.clusters import limits
from orchestrator.load.definitions import RecipeFile
from orchestrator.load.files import read_toml
from orchestrator.load.inputs import parse_table
from orchestrator.load.inventory import run_ansible_inventory
from orchestrator.model.process_group import Backend
from orchestrator.targets import registry
from orchestrator.targets.batch.inputs import batch_settings
from orchestrator.targets.batch.pbs import PBS
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.batch.system import BatchSystem
from orchestrator.targets.kubernetes import names
from orchestrator.targets.kubernetes.inputs import kubernetes_settings, read_patch
from tests.support.kubernetes_plans import SITE, make_plan, objects
from tests.support.pages import PAGES, blocks

CHECKED = "checked as: "
ALL = [(page, block) for page in PAGES for block in blocks(page)]
CHECKED_BLOCKS = [(page, block) for page, block in ALL if block.mark.startswith(CHECKED)]
PROGRAMS = [(page, block) for page, block in ALL if block.language == "python"]
ORCH_MODULE = re.compile(r"orch_node|orch_training")
PLUGINS = TypeAdapter(dict[str, list[Backend]])


def check_variables(path: Path) -> bool:
    values = yaml.safe_load(path.read_text())
    limits("node0", values)
    return values.keys() <= {"orch_limits"}  # add a reader for other variables


def check_batch_settings(system: BatchSystem, path: Path) -> object:
    settings = batch_settings(system, path, (), {})
    settings.check()
    return settings.options or settings.image


def check_kubernetes_settings(path: Path) -> object:
    settings = kubernetes_settings(path, [])
    settings.check_image()
    return objects(make_plan("job", kubernetes=settings.model_copy(update={"context": None})))


def check_entry_points(path: Path) -> bool:
    groups = tomllib.loads(path.read_text())["project"]["entry-points"]
    return groups.keys() <= {definitions.BACKENDS, definitions.ENTRY_POINTS, registry.GROUP}


def check_backend(path: Path) -> object:
    values: dict[str, object] = {}
    exec(path.read_text(), values)
    return TypeAdapter(Backend).validate_python(values["BACKEND"])


# Functions that return a true value, or raise an error, for each kind of file.
READERS: dict[str, Callable[[Path], object]] = {
    "inventory": lambda path: run_ansible_inventory(path).hosts,
    "variables of the inventory": check_variables,
    "orch-slurm.toml": partial(check_batch_settings, SLURM),
    "orch-pbs.toml": partial(check_batch_settings, PBS),
    "orch-k8s.toml": check_kubernetes_settings,
    "recipe.toml": lambda path: read_toml(path, RecipeFile),
    "entry points": check_entry_points,
    "a backend": check_backend,
    "plug-ins of a stack": lambda path: PLUGINS.validate_python(tomllib.loads(path.read_text()))["plugins"],
    "a patch": read_patch,
    "labels": lambda path: yaml.safe_load(path.read_text()).keys() == names.labels(SITE.run_id).keys(),
    "[tool.orch]": lambda path: parse_table(path, tomllib.loads(path.read_text())["tool"]["orch"]),
}


def test_file_is_valid(tmp_path: Path) -> None:
    for page, block in CHECKED_BLOCKS:
        path = tmp_path / f"shown.{block.language.replace('yaml', 'yml')}"
        path.write_text(block.text + "\n")
        assert READERS[block.mark.removeprefix(CHECKED)](path), f"{page.name}:{block.line}"


def functions_of(module: str) -> set[str]:
    """Return the functions of a module without importing it, which may load torch."""
    spec = importlib.util.find_spec(module)
    tree = ast.parse(Path(spec.origin if spec and spec.origin else "").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def attributes_used(tree: ast.Module, name: str) -> set[str]:
    """Return the attributes of a module that a program uses."""
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == name}


def test_programs_parse_and_their_imports_from_orch_exist() -> None:
    trees = [ast.parse(block.text, f"{page.name}:{block.line}") for page, block in PROGRAMS]
    for tree, node in ((program, node) for program in trees for node in ast.walk(program)):
        if isinstance(node, ast.ImportFrom) and ORCH_MODULE.match(node.module or ""):
            (name,) = (alias.name for alias in node.names)
            if not callable(getattr(importlib.import_module(str(node.module)), name, None)):
                assert attributes_used(tree, name) <= functions_of(f"{node.module}.{name}")
