"""Resolve and install a user's packages so that they fit the stack."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError, OrchError, PlanError, RequestError
from orchestrator.load import packages
from orchestrator.load.packages import lock_packages, packages_for
from orchestrator.model.facts import Facts
from orchestrator.model.packages import Packages, Requirements
from tests.conftest import make_facts
from tests.support.files import set_age, write_files
from tests.support.projects import commit, git
from tests.support.wheels import make_project, make_wheel

STACK = {"torch": "2.13.0+cpu", "numpy": "2.4.6", "oneccl-bind-pt": "2.13.0+orch.10"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of wheels that is the only index, and give orch an empty cache."""
    folder = tmp_path / "index"
    make_wheel(folder, "tiny", "1.0", requires=["helper>=2", "torch>=2"], module="A = 1")
    make_wheel(folder, "helper", "2.1")
    make_wheel(folder, "helper", "2.2", module="A = 1")
    make_wheel(folder, "old_torch", "1.0", requires=["torch<2.10"])
    make_wheel(folder, "numpy", "2.4.6")
    make_wheel(folder, "compiled", "1.0", tag="cp39-cp39-manylinux_2_17_x86_64")
    # Settings of uv, because those of pip are read by a process of pip each time.
    for name, value in {"UV_FIND_LINKS": folder, "UV_OFFLINE": "1", "XDG_CACHE_HOME": tmp_path / "cache"}.items():
        monkeypatch.setenv(name, str(value))
    return folder


def node(python: str = "3.11.7", libc: str = "2.36", machine: str = "x86_64") -> Facts:
    return replace(make_facts(), python=python, libc=libc, machine=machine, packages=STACK, hostname=python)


def resolved(*lines: str, **fields: object) -> Packages | None:
    requirements = Requirements(source="train.py", lines=lines, **fields)  # type: ignore[arg-type]
    return packages_for(requirements, [node()], "stack 'current'")


def test_only_packages_that_the_stack_lacks_are_installed_once(index: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        result, *repeated = pool.map(lambda _: resolved("tiny", "numpy", "torch"), range(4))
    assert repeated == [result] * 3
    assert len([path for path in packages.cache().iterdir() if path.is_dir()]) == 1
    assert result.versions == {"helper": "2.2", "tiny": "1.0"}
    names = {path.name for path in Path(result.folder).iterdir()}
    assert names == {"helper-2.2.dist-info", "helper.py", "tiny-1.0.dist-info", "tiny.py"}
    assert "helper 2.2, tiny 1.0" in result.decision().value
    for path in index.iterdir():
        path.unlink()
    assert resolved("tiny", "numpy", "torch") == result, "a later run needs no index"
    with pytest.raises(OrchError):
        resolved("tiny", "helper<2.2")


def test_a_wheel_that_was_built_again_is_installed_again(index: Path, tmp_path: Path) -> None:
    own = tmp_path / "own wheels"
    for content in ("A = 1", "A = 2"):
        make_wheel(own, "mine", "1.0", module=content)
        assert (Path(resolved(f"--find-links {own}", "mine").folder) / "mine.py").read_text() == content


def test_versions_of_a_lock_are_preferred_and_torch_stays_as_it_is(index: Path) -> None:
    """Add nothing that torch requires on the index."""
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    make_wheel(index, "torch", "2.13.0+cpu", requires=["nvidia-everything"], tag=tag)
    assert resolved("tiny", preferred=("helper==2.1", "torch==2.5.0")).versions == {"helper": "2.1", "tiny": "1.0"}


def test_no_packages_are_added_if_the_stack_has_all(index: Path) -> None:
    assert resolved("torch>=2.13", "numpy; python_version>'3'", "tiny; sys_platform=='win32'") is None
    assert not (index.parent / "cache").exists(), "uv need not be called"


def test_conflicts_name_both_requirements(index: Path) -> None:
    for line, message in (
        ("torch<2.10", r"train.py requires torch<2.10, and stack 'current' has torch 2.13.0\+cpu"),  # own
        ("old-torch", r"stack 'current'.*torch<2.10"),  # indirect
        ("nothing", "nothing was not found"),  # unknown
        ("compiled", "compiled"),  # other platform
    ):
        with pytest.raises(RequestError, match=message):
            resolved(line)


def test_a_package_with_a_source_of_uv_is_refused_unless_the_stack_has_it() -> None:
    sources = {"torch": "pyproject.toml", "my-lib": "pyproject.toml"}
    assert resolved("torch", uv_sources=sources) is None
    with pytest.raises(RequestError, match=r"pyproject.toml: my_lib has a source in \[tool.uv.sources\]"):
        resolved("torch", "my_lib", uv_sources=sources)


def test_another_python_is_refused(index: Path) -> None:
    with pytest.raises(RequestError, match=r"requires Python >=3.12, and the ranks have Python 3.11.7"):
        resolved("tiny", python=">=3.12")
    with pytest.raises(PlanError, match=r"differ: Python 3.11 on x86_64 \(3.11.7\), Python 3.12 .* \(3.12.1\)"):
        packages_for(Requirements(source="a", lines=("tiny",)), [node(), node("3.12.1")], "stack 'current'")
    with pytest.raises(PlanError, match="its C library is unknown"):
        packages_for(Requirements(source="a", lines=("tiny",)), [node(libc="")], "stack 'current'")


def test_a_file_with_another_hash_is_refused(index: Path) -> None:
    wheel = index / "helper-2.2-py3-none-any.whl"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert resolved(f"helper==2.2 --hash=sha256:{digest}") is not None
    with pytest.raises(RequestError, match=r"helper==2.2 has one of the required hashes"):
        resolved(f"helper==2.2 --hash=sha256:{'0' * 64}")
    lock = f"helper==2.2 --hash=sha256:{'0' * 64}\n"
    platform = packages.common_platform([node()])
    with pytest.raises(OrchError, match="Hash mismatch"):
        packages.install(packages.cache() / "x", Requirements(source="a", lines=()), lock, platform)
    assert not (packages.cache() / "x").exists(), "nothing incomplete is left"


def test_a_package_in_a_git_repository_is_installed_by_its_commit(index: Path, tmp_path: Path) -> None:
    repository = make_project(tmp_path / "git", "mine", module="A = 1")
    git(repository, "init", "--quiet")
    commit(repository)
    line = f"mine @ git+file://{repository}"
    assert {path.name for path in Path(resolved(line, "helper").folder).glob("*.py")} == {"helper.py", "mine.py"}
    with pytest.raises(RequestError, match="has one of the required hashes"):
        resolved(f"{line} --hash=sha256:{'0' * 64}")
    with pytest.raises(RequestError, match="packages in git repositories have no hashes"):
        lock_packages(Requirements(source="a", lines=(line,)), STACK, packages.common_platform([node()]), "current")


def test_a_package_that_was_compiled_here_is_refused(tmp_path: Path) -> None:
    platform = packages.common_platform([node()])
    write_files(tmp_path, {"native-1.0.dist-info/WHEEL": "Tag: py3-none-any\n"})
    packages.check_built(tmp_path, platform, Requirements(source="a", lines=()))
    write_files(tmp_path, {"native-1.0.dist-info/WHEEL": "Tag: cp311-cp311-linux_x86_64\n"})
    with pytest.raises(ExecuteError, match=r"native 1\.0 has no wheel for Python 3\.11"):
        packages.check_built(tmp_path, platform, Requirements(source="a", lines=()))


def test_packages_without_use_for_30_days_are_removed(index: Path) -> None:
    old, new = resolved("helper<2.2"), resolved("helper")
    for path in (Path(old.folder).with_name("digest"), *packages.cache().glob("*.txt")):
        set_age(path, 31 * 86400)
    folder = str(Path(old.folder).parent)
    assert packages.remove_unused(dry_run=True) == (folder,)
    assert Path(old.folder).exists()
    assert packages.remove_unused(dry_run=False) == (folder,)
    assert not Path(folder).exists()
    assert Path(new.folder).exists()
    assert resolved("helper<2.2") == old, "they can be installed again"


def test_indexes_of_pip_are_passed_to_uv_unless_it_has_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://user:word@a/simple\nextra-index-url =\n  https://b\n  https://c\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels https://d")
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    variables, _ = packages.index_settings()
    assert variables["UV_DEFAULT_INDEX"] == "https://user:word@a/simple"
    assert variables["UV_INDEX"] == "https://b https://c"
    assert variables["UV_FIND_LINKS"] == f"{tmp_path}/wheels,https://d"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mine")
    assert packages.index_settings() == ({}, [])
