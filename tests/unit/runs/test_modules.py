"""Advice about modules that ranks do not find."""

from __future__ import annotations

from pathlib import Path

from orchestrator.model.finding import Finding
from orchestrator.runs.explanations import explain
from orchestrator.runs.modules import advise_on_module


def explanation_of(module: str) -> Finding:
    (explanation,) = explain(f"ModuleNotFoundError: No module named '{module}'")
    return explanation


def test_misspelled_module_of_the_project_is_corrected(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "data").mkdir(parents=True)
    for name in ("train.py", "pkg/__init__.py", "pkg/preprocessing.py", "pkg/data/loader.py"):
        (tmp_path / name).touch()
    for name, intended in {
        "pkg.preprocesing": "pkg.preprocessing",
        "pkg.data.laoder": "pkg.data.loader",
        "pgk": "pkg",
    }.items():
        assert advise_on_module(explanation_of(name), tmp_path).cure == f"Did you mean your module {intended}?"
    assert "dependencies" not in advise_on_module(explanation_of("pkg.models"), tmp_path).cure


def test_missing_package_comes_with_the_lines_to_paste() -> None:
    result = advise_on_module(explanation_of("sklearn.metrics"), None)
    assert result.cure.endswith('The block:\n# /// script\n# dependencies = ["scikit-learn"]\n# ///')


def test_other_explanations_stay_as_they_are() -> None:
    (explanation,) = explain("OSError: No space left on device")
    assert advise_on_module(explanation, None) == explanation
