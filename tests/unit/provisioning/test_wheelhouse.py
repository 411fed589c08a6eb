"""Add the user's packages to the wheels of a stack."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from orchestrator.errors import OrchError
from orchestrator.model.packages import Platform, Requirements
from orchestrator.provisioning.wheelhouse import Wheelhouse, add_packages, describe_wheel
from tests.support.files import write_files
from tests.support.wheels import index_variables, make_project, make_wheel

NODE = Platform(python="3.11", machine="x86_64", libc="2.36")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of wheels that is the only index, and give orch an empty cache."""
    folder = tmp_path / "index"
    make_wheel(folder, "tiny", "1.0", requires=["helper>=2", "torch>=2", "numpy", "uv"])
    make_wheel(folder, "uv", "0.14.0")
    make_wheel(folder, "helper", "2.1")
    make_wheel(folder, "native", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    make_wheel(folder, "native", "1.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    for name, value in {**index_variables(folder), "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Wheelhouse:
    folder = tmp_path / "wheelhouse"
    versions = {"torch": "2.13.0+cpu", "numpy": "2.4.6", "uv": "0.13.8"}
    wheels = [make_wheel(folder, name, version) for name, version in versions.items()]
    return Wheelhouse(folder=folder, wheels=tuple(map(describe_wheel, wheels)))


def extend(wheelhouse: Wheelhouse, *lines: str, notes: list[str] | None = None) -> Wheelhouse:
    requirements = Requirements(source="needs.txt", lines=lines)
    return add_packages(wheelhouse, requirements, NODE, "current", (notes if notes is not None else []).append)


def test_wheels_that_the_stack_lacks_are_added_to_those_of_the_stack(wheelhouse: Wheelhouse, index: Path) -> None:
    assert extend(wheelhouse, "torch>=2") is wheelhouse
    notes: list[str] = []
    result = extend(wheelhouse, "tiny", "torch>=2", "native", notes=notes)
    lock = [f"{wheel.name} {wheel.version}" for wheel in result.lock]
    assert lock == ["torch 2.13.0+cpu", "numpy 2.4.6", "helper 2.1", "native 1.0", "tiny 1.0"]
    assert result.wheels[4].file.startswith("native-1.0-cp311-")
    assert all((result.folder / wheel.file).stat().st_size == wheel.size for wheel in result.wheels)
    variables = result.variables()
    assert variables["own"] == ["helper", "native", "tiny"], "nodes need no index that has them"
    assert variables["uv"] == wheelhouse.variables()["uv"], "the installer is that of the stack"
    assert notes == [
        "packages: downloading those of needs.txt (once)",
        "packages: helper 2.1, native 1.0, tiny 1.0 (needs.txt)",
    ]
    for path in index.iterdir():
        path.unlink()
    assert extend(wheelhouse, "tiny", "torch>=2", "native") == result, "the same packages need no index"


def test_a_file_with_another_hash_is_refused_and_leaves_nothing(wheelhouse: Wheelhouse, index: Path) -> None:
    shutil.rmtree(extend(wheelhouse, "helper").folder)  # the cache still has the lock
    make_wheel(index, "helper", "2.1", module="CHANGED = 1")
    before = sorted(wheelhouse.folder.iterdir())
    with pytest.raises(OrchError, match="DO NOT MATCH THE HASHES"):
        extend(wheelhouse, "helper")
    assert sorted(wheelhouse.folder.iterdir()) == before


def test_pure_python_packages_without_a_wheel_are_built(wheelhouse: Wheelhouse, index: Path, tmp_path: Path) -> None:
    project = make_project(tmp_path / "source", "archived")
    write_files(project, {"PKG-INFO": "Metadata-Version: 2.1\nName: archived\nVersion: 1.0\n"})
    with tarfile.open(index / "archived-1.0.tar.gz", "w:gz") as archive:
        archive.add(project, "archived-1.0")
    files = [wheel.file for wheel in extend(wheelhouse, "archived", "helper").wheels[3:]]
    assert files == ["archived-1.0-py3-none-any.whl", "helper-2.1-py3-none-any.whl"]
