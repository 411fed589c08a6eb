from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import ExecuteError, RequestError
from orchestrator.provisioning import bindings_wheel, pip, wheelhouse
from tests.support.files import write_files
from tests.support.wheels import make_wheel

TORCH = "2.13.0+cpu"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Return a folder with the wheel that `orch setup` has built."""
    return write_files(tmp_path / "wheels", {"oneccl_bind_pt-2.13.0+orch.10-cp311-cp311-linux_x86_64.whl": "built"})


def test_find_wheel_returns_a_wheel_whose_build_record_is_current(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bindings_wheel.find_wheel(built, TORCH) is None, "no build record"
    bindings_wheel.record_build(built, TORCH)
    assert bindings_wheel.find_wheel(built, TORCH) in list(built.iterdir())
    assert bindings_wheel.find_wheel(built, "2.13.0+cu130") is None
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    assert bindings_wheel.find_wheel(built, TORCH) is None
    bindings_wheel.record_build(built, TORCH)
    assert bindings_wheel.find_wheel(built, TORCH), "built with these flags"
    monkeypatch.setattr("orchestrator.provisioning.bindings_wheel.SHARE", built)
    assert bindings_wheel.find_wheel(built, TORCH) is None, "other sources"


def test_nodes_get_the_wheel_that_setup_has_built(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyPI's wheel of torch names its build in version.py only, and `orch setup` records that."""
    stack = load.stack("current")
    packages = tmp_path / "lib/python3.11/site-packages"
    version_file = "__version__ = '2.13.0+cu130'\n"
    write_files(packages, {"torch/version.py": version_file, "torch-2.13.0.dist-info/RECORD": ""})
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr(bindings_wheel.pip, "run_pip", lambda *arguments, **_: pytest.fail(f"{arguments}"))
    monkeypatch.delenv("CXXFLAGS", raising=False)
    bindings_wheel.record_build(built, "2.13.0+cu130")
    (wheel,) = bindings_wheel.build_wheel(stack, tmp_path).iterdir()
    assert wheel.read_text() == "built"


def test_bindings_are_not_built_with_tools_of_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = replace(load.stack("current"), name="small", requirements={"torch": version("torch")}, indexes=())
    (tmp_path / "small.txt").write_text(f"setuptools==80.0 --hash=sha256:{'0' * 64}\n")
    make_wheel(tmp_path / "mirror", "setuptools", "80.0")
    monkeypatch.setattr(pip, "LOCKS", tmp_path)
    write_files(tmp_path / "lib/python3.11/site-packages", {f"torch-{stack.torch}.dist-info/RECORD": ""})
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "mirror")}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(ExecuteError, match=r"setuptools-80.0.* does not have the content that the lock"):
        bindings_wheel.build_wheel(stack, tmp_path)


def test_bindings_for_another_python_or_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse them before pip, which would only report that no index has the bindings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    platform = replace(pip.local_platform(), machine="riscv64")
    with pytest.raises(RequestError, match=r"but wheels for Python .* are needed"):
        wheelhouse.prepare_wheelhouse(load.stack("current"), platform, (), print)
