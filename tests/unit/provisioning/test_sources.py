from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.errors import RequestError
from orchestrator.provisioning.sources import find_sources, folder_files, source_trees
from tests.support.files import write_files
from tests.support.hostile import ESCAPE_SEQUENCE


def test_gitignore_and_orchignore_of_the_folder_count(tmp_path: Path) -> None:
    names = ("a", "b", "raw/a", "raw/keep", "deep/raw/a", "deep/x", "deep/b", "__pycache__/x.pyc")
    rules = {".gitignore": "/raw/*\n!/raw/keep\nb\n", "deep/.gitignore": "raw/\n!b\n", ".orchignore": "deep/x\n"}
    write_files(tmp_path, {**dict.fromkeys(names, ""), **rules})
    assert sorted(folder_files(tmp_path)) == [".gitignore", ".orchignore", "a", "deep/.gitignore", "deep/b", "raw/keep"]


def test_links_are_followed_once(tmp_path: Path) -> None:
    write_files(tmp_path, {"elsewhere/rows": "", "data/a": ""})
    (tmp_path / "data/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/loop").symlink_to(tmp_path / "data")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "elsewhere2")
    (tmp_path / "elsewhere2").mkdir()
    (tmp_path / "elsewhere2/forth").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/broken").symlink_to(tmp_path / "gone")
    assert sorted(folder_files(tmp_path / "data")) == ["a", "linked/rows"]


def test_names_of_files_are_not_in_variables_of_ansible(tmp_path: Path) -> None:
    name = "{{ lookup('pipe', 'id') }}"
    write_files(tmp_path / "data", {name: "x"})
    (source,) = find_sources([], [str(tmp_path / "data")], print)
    assert (source.synced.files, source.synced.size, source.synced.path) == (1, 1, "data/data")
    with source_trees([source]) as trees:
        assert "{{" not in json.dumps(trees)
        assert list(json.loads(Path(trees[0]["manifest"]).read_text())) == [name]


def test_unusable_names_are_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"a/rows": "", "b/rows": "", os.fsdecode(b"c/caf\xe9"): ""})
    folders = [str(tmp_path / name) for name in ("a/rows", "b/rows", "c")]
    names = ("./gone", "/gone", "a/b/c", "x@../y", ".hidden", "x@a..b", ESCAPE_SEQUENCE)
    for models, data, message in (
        ([], folders[:2], "already copied to data/rows"),
        ([], folders[2:], r"caf\\udce9 is not UTF-8"),
        *(([name], [], "no such file or folder") for name in names),
    ):
        with pytest.raises(RequestError, match=message):
            find_sources(models, data, print)
