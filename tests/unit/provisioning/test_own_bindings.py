"""The wheel of the bindings that `orch setup` has built is the one that nodes get."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.provisioning import own_bindings, wheelhouse

TORCH = "2.13.0+cpu"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "oneccl_bind_pt-2.13.0+orch.10-cp311-cp311-linux_x86_64.whl").write_text("built")
    return folder


def test_it_is_taken_while_nothing_has_changed(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_bindings.made(built, TORCH) is None, "nobody knows of what it was made"
    own_bindings.note(built, TORCH)
    assert own_bindings.made(built, TORCH) in list(built.iterdir())
    assert own_bindings.made(built, "2.13.0+cu130") is None
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    assert own_bindings.made(built, TORCH) is None
    own_bindings.note(built, TORCH)
    assert own_bindings.made(built, TORCH), "made with these flags now"
    monkeypatch.setattr("orchestrator.provisioning.own_bindings.SHARE", built)
    assert own_bindings.made(built, TORCH) is None, "of other sources"


def test_nothing_is_compiled_for_nodes_then(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = load.stack("current")
    if not wheelhouse.torch_is_here(stack):
        pytest.skip("no torch of the stack in this environment")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr(wheelhouse, "run", lambda argv, *_: pytest.fail(f"{argv}"))
    monkeypatch.delenv("CXXFLAGS", raising=False)
    own_bindings.note(built, version("torch"))
    (wheel,) = wheelhouse.build_bindings(stack).iterdir()
    assert wheel.read_text() == "built"


def test_nothing_is_compiled_if_the_metadata_of_torch_do_not_name_its_build(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test PyPI's wheel of torch: `orch setup` notes its __version__, which names the build."""
    stack = load.stack("current")
    if not wheelhouse.torch_is_here(stack):
        pytest.skip("no torch of the stack in this environment")
    module = tmp_path / "lib" / "python3.11" / "site-packages" / "torch" / "version.py"
    module.parent.mkdir(parents=True)
    module.write_text("__version__ = '2.13.0+cu130'\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr(wheelhouse, "run", lambda argv, *_: pytest.fail(f"{argv}"))
    monkeypatch.delenv("CXXFLAGS", raising=False)
    own_bindings.note(built, "2.13.0+cu130")
    (wheel,) = wheelhouse.build_bindings(stack).iterdir()
    assert wheel.read_text() == "built"
