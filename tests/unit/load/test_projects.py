"""Check which files of a user's project go to the nodes, and which projects are refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.errors import RequestError
from orchestrator.load.projects import project_of
from orchestrator.model.project import Project
from orchestrator.model.recipe import Recipe
from tests.support.files import write_files
from tests.support.projects import commit, git


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which holds a project without git."""
    project = tmp_path / "work"
    names = ("train.py", "model.py", "conf/a.yaml", "runs/1/plan.json", "__pycache__/x.pyc", ".env", ".cache/y")
    write_files(project, {name: name for name in names})
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def repository(folder: Path) -> Path:
    """Return the current folder as a git repository with a commit."""
    write_files(folder, {".gitignore": "*.bin\nruns/\n.env\n__pycache__/\n.cache/\n", "weights.bin": "x"})
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def project(folder: Path, option: str | None = None, *, script: str = "train.py", limit: int = 200) -> Project:
    recipe = Recipe(name="train", script=str(folder / script), own_script=True)
    return project_of(recipe, option, limit=limit, left_out=[folder / "runs"])


def test_outside_of_git_it_is_the_scripts_folder_without_hidden_files_and_runs(folder: Path) -> None:
    write_files(folder, {"env/pyvenv.cfg": ""})
    sent = project(folder)
    assert list(sent.files) == ["conf/a.yaml", "model.py", "train.py"]
    assert (sent.folder, sent.directory, sent.source, sent.size) == (str(folder), ".", "folder", 27)


def test_in_git_it_is_the_repository_without_ignored_files(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(repository, {"new.py": "", "sub/train.py": ""})
    (repository / "model.py").unlink()
    monkeypatch.chdir(repository / "conf")
    sent = project(repository, script="sub/train.py")
    assert list(sent.files) == [".gitignore", "conf/a.yaml", "new.py", "sub/train.py", "train.py"]
    assert (sent.folder, sent.directory, sent.source) == (str(repository), "conf", "git")
    assert sent.working_directory("/run/project") == "/run/project/conf"


def commit_of(repository: Path) -> str:
    return subprocess.check_output(["git", "-C", repository, "rev-parse", "HEAD"], text=True).strip()


def test_commit_is_recorded_with_whether_it_was_modified(repository: Path) -> None:
    (repository / "runs" / "2").mkdir()
    clean = project(repository)
    assert (clean.commit, clean.modified) == (commit_of(repository), False)
    assert clean.decision().value.endswith(f"; commit {clean.commit[:7]}")
    write_files(repository, {"sub/train.py": ""})
    commit(repository, "sub")
    write_files(repository, {"conf/a b.yaml": "new"})
    changed = project(repository, "conf/..")
    assert (changed.commit, changed.modified) == (commit_of(repository), True)
    assert changed.decision().value.endswith(f"; commit {changed.commit[:7]}, modified")
    assert not project(repository, "sub", script="sub/train.py").modified, "its own files have not changed"
    write_files(repository, {".git/info/exclude": ".orchignore\n", ".orchignore": "conf/\n"})
    assert not project(repository).modified, "the changed file is not sent"
    (repository / "model.py").unlink()
    assert project(repository).modified


def test_orchignore_excludes_further_files_but_not_the_script(repository: Path) -> None:
    write_files(repository, {".orchignore": "\ufeffconf/*\n!conf/b.yaml\ntrain.py\n.*ignore\n", "conf/b.yaml": ""})
    assert list(project(repository).files) == ["conf/b.yaml", "model.py", "train.py"]


def test_orchignore_adds_files_that_git_ignores(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.bin\n*.orch*\n.gitignore\ntrain.py\n")
    git(repository, "rm", "--quiet", "--cached", "train.py")
    write_files(repository, dict.fromkeys(("data/train.bin", "data/huge.bin", "other.bin"), "numbers"))
    before = project(repository)
    assert "train.py" in before.files, "the script is always sent"
    (repository / ".orchignore").write_text("!data/*.bin\ndata/huge.bin\n")
    assert {*project(repository).files} - {*before.files} == {"data/train.bin"}


def test_outside_of_git_gitignore_counts_as_well(folder: Path) -> None:
    write_files(folder, {".gitignore": "conf/\ndata/\nmodel.py\n", ".orchignore": "!model.py\n", "data/rows": ""})
    write_files(folder, {"exp/runs1/.gitignore": "*\n", "exp/runs1/a/project/model.pt": "", "exp/.gitignore": "*.pt\n"})
    write_files(folder, {"exp/a/model.pt": "", "exp/a/model.py": ""})
    assert list(project(folder).files) == ["exp/a/model.py", "model.py", "train.py"]


def test_files_of_a_submodule_belong_to_it(repository: Path, tmp_path: Path) -> None:
    library = write_files(tmp_path / "library", {"layers.py": ""})
    git(library, "init", "--quiet")
    commit(library)
    git(repository, "submodule", "--quiet", "add", str(library), "library")
    commit(repository, "library")
    sent = project(repository)
    assert ("library/layers.py" in sent.files, sent.modified) == (True, False)
    (repository / "library" / "layers.py").write_text("changed")
    assert project(repository).modified


def test_digest_follows_names_and_contents(folder: Path) -> None:
    before = project(folder).digest
    assert project(folder).digest == before
    (folder / "model.py").write_text("changed")
    changed = project(folder).digest
    (folder / "model.py").rename(folder / "other.py")
    assert len({before, changed, project(folder).digest}) == 3


def test_a_folder_can_be_named_and_switched_off(folder: Path) -> None:
    assert list(project(folder, ".").files) == ["conf/a.yaml", "model.py", "train.py"]
    assert "work/model.py" in project(folder, "..").files
    recipe = Recipe(name="train", script=str(folder / "train.py"), own_script=True)
    assert project_of(recipe, "none", limit=1, left_out=[folder / "runs"]) is None
    assert project_of(Recipe(name="bert-qa", script="x.py"), None, limit=1, left_out=[folder / "runs"]) is None
    module = Recipe(name="train", script="package.train", own_script=True, module=True)
    sent = project_of(module, None, limit=200, left_out=[Path("runs"), Path("conf"), Path("nosuch")])
    assert list(sent.files) == ["model.py", "train.py"]


def test_a_link_inside_stays_and_a_link_outside_is_refused(folder: Path) -> None:
    (folder / "alias.py").symlink_to("model.py")
    (folder / "loop").symlink_to("loop")
    assert {"alias.py", "loop"} <= project(folder).files.keys()
    (folder / "copy.py").symlink_to(folder / "model.py")
    with pytest.raises(RequestError, match=r"work/copy.py is an absolute link"):
        project(folder)
    (folder / "copy.py").unlink()
    (folder / "data").symlink_to("/usr/share")
    with pytest.raises(RequestError, match=r"work/data is a link out of the project, to /usr/share"):
        project(folder)


def test_a_project_above_the_limit_names_its_largest_files(folder: Path) -> None:
    with (folder / "checkpoint.pt").open("wb") as file:
        file.truncate(3_000_000)
    with pytest.raises(RequestError, match=r"has 3 MB, more than the limit of 2 MB.*: checkpoint\.pt \(3\.0 MB\)"):
        project(folder, limit=2)
    assert "checkpoint.pt" in project(folder, limit=4).files


def test_a_repository_that_git_cannot_use_is_reported(folder: Path) -> None:
    (folder / ".git").write_text("gitdir: /nonexistent\n")
    with pytest.raises(RequestError, match=r"git rev-parse in .*not a git repository"):
        project(folder)
