"""Which files of wheels become bytecode, and that what is written is a wheel."""

from __future__ import annotations

import marshal
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.provisioning.bytecode import SOURCE_TIME, can_compile, module_path, write_bytecode
from orchestrator.provisioning.wheelhouse import is_imported


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("torch/nn/functional.py", "torch/nn/functional.py"),
        ("six.py", "six.py"),
        ("a-1.0.data/purelib/a/b.py", "a/b.py"),
        ("a-1.0.data/platlib/a.py", "a.py"),
        ("a-1.0.data/scripts/run.py", None),
        ("a-1.0.data/data/share/a.py", None),
        ("a-1.0.data/", None),
        ("torch/lib/libtorch.so", None),
        ("pandas/tests/test_frame.py", None),
        ("torch/testing/_internal/common.py", None),
        ("transformers/models/auto/modeling_auto.py", "transformers/models/auto/modeling_auto.py"),
        ("transformers/models/__init__.py", "transformers/models/__init__.py"),
        ("transformers/models/llama/modeling_llama.py", None),
        ("../outside.py", None),
        ("/outside.py", None),
    ],
)
def test_what_of_a_wheel_is_compiled(name: str, path: str | None) -> None:
    found = module_path(name)
    assert (str(found) if found else None) == path


def test_the_wheel_says_the_time_that_its_sources_will_have(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny/__init__.py", "ANSWER = 6 * 7\n")
        wheel.writestr("tiny/other.py", "this is no Python\n")
    (tmp_path / ".bytecode-left").mkdir()  # by one that was killed
    made = write_bytecode(tmp_path, [tmp_path / "tiny-1.0-py3-none-any.whl"], "0123456789ab")
    tag = sys.implementation.cache_tag
    with zipfile.ZipFile(made) as wheel:
        assert [name for name in wheel.namelist() if name.endswith(".pyc")] == [f"tiny/__pycache__/__init__.{tag}.pyc"]
        content = wheel.read(f"tiny/__pycache__/__init__.{tag}.pyc")
    flags, time, size = (int.from_bytes(content[at : at + 4], "little") for at in (4, 8, 12))
    assert (flags, time, size) == (0, SOURCE_TIME, len("ANSWER = 6 * 7\n"))
    assert 42 in marshal.loads(content[16:]).co_consts
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_only_the_same_python_compiles_for_nodes() -> None:
    major, minor, *_ = sys.version_info
    assert can_compile(f"{major}.{minor}")
    assert not can_compile(f"{major}.{minor + 1}")


def test_programs_and_mpi_beside_the_environment_have_none() -> None:
    named = ("uv-1-py3-none-any.whl", "mpich-5-py3-none-any.whl", "orch_bytecode-1-py3-none-any.whl")
    assert not any(is_imported(Path(name)) for name in named)
    assert is_imported(Path("torch-2.13.0-cp311-cp311-linux_x86_64.whl"))
