"""Downloads with fsspec from web servers on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from orchestrator.errors import OrchError
from orchestrator.provisioning import urls
from orchestrator.provisioning.sources import find_sources
from tests.support.disks import small_file_system
from tests.support.files import write_files
from tests.support.http_server import serve_folder
from tests.support.hub_server import Hub, Repository
from tests.support.ports import free_port

LARGE = os.urandom(1 << 20) * 24


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def ranges() -> Iterator[Hub]:
    """Yield a server that names versions (ETag) and sends parts of files."""
    repositories = [
        Repository("models", "me/open", {"rows.bin": LARGE}),
        Repository("models", "me/closed", {"rows.bin": b"x"}, token="t"),
    ]
    with Hub(repositories) as server:
        yield server


def test_interrupted_download_continues_and_is_not_repeated(ranges: Hub) -> None:
    url = f"{ranges.url}/me/open/resolve/main/rows.bin?token=secret"
    ranges.cut["rows.bin"] = 20 << 20
    notes: list[str] = []
    with pytest.raises(OrchError) as exc_info:
        urls.download("data", url, notes.append)
    assert (exc_info.value.exit_code, "secret" in exc_info.value.message) == (1, False)
    first = len(ranges.ranges("rows.bin"))
    path = urls.download("data", url, notes.append)
    assert (path.name, path.read_bytes() == LARGE) == ("rows.bin", True)
    continued = ranges.ranges("rows.bin")[first:]
    assert all(int(part.removeprefix("bytes=").partition("-")[0]) >= 8 << 20 for part in continued), continued
    urls.download("data", url, notes.append)
    assert len(ranges.ranges("rows.bin")) == first + len(continued)
    assert "secret" not in str(notes)


def test_incomplete_file_is_reported_without_the_secrets_of_its_url(ranges: Hub, tmp_path: Path) -> None:
    url = f"{ranges.url}/me/open/resolve/main/rows.bin?signature=secret"
    filesystem, path = url_to_fs(url)
    info = dict(filesystem.info(path), size=len(LARGE) + 1)
    with pytest.raises(OrchError, match=r"rows.bin: \d+ of \d+ bytes") as exc_info:
        urls.download_file(filesystem, info, tmp_path / "x")
    assert "secret" not in exc_info.value.message


def test_full_disk_of_this_machine_is_explained(ranges: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_file_system(tmp_path / "small", "12M"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "small"))
        with pytest.raises(OrchError, match="No space left on device") as exc_info:
            urls.download("data", f"{ranges.url}/me/open/resolve/main/rows.bin", print)
    assert exc_info.value.exit_code == 1


def test_another_version_replaces_the_file(ranges: Hub) -> None:
    url = f"{ranges.url}/me/open/resolve/main/rows.bin"
    assert urls.download("data", url, print).read_bytes() == LARGE
    ranges.repositories[0].files["rows.bin"] = b"new"
    assert urls.download("data", url, print).read_bytes() == b"new"


def test_folder_of_a_web_server_is_mirrored(tmp_path: Path) -> None:
    names = ("set/a.txt", "set/deep/b.txt", "other.txt")
    folder = write_files(tmp_path / "served", {name: name for name in names})
    with serve_folder(folder) as url:
        copy = urls.download("data", f"{url}/set/", print)
        assert copy.name == "set"
        assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*.txt")) == ["a.txt", "deep/b.txt"]
        (folder / "set/a.txt").unlink()
        (folder / "set/deep/.gitignore").write_text("b.txt\n")
        (source,) = find_sources([], [f"{url}/set/"], print)
    assert [path.name for path in copy.rglob("*.txt")] == ["b.txt"]
    assert sorted(source.hashes) == ["deep/.gitignore", "deep/b.txt"], "the rules of .gitignore are for local folders"


def test_failed_downloads_are_explained(ranges: Hub) -> None:
    for url, code, message in (
        (f"{ranges.url}/me/open/resolve/main/none", 2, "404, message='Not Found'"),
        (f"{ranges.url}/me/closed/resolve/main/rows.bin", 2, "40[13], message="),
        (f"http://127.0.0.1:{free_port()}/rows", 1, r"cannot be downloaded: .*[Cc]onnect"),  # unreachable
        ("nonsense://bucket/rows", 2, "not known"),
        ("s3://bucket/set", 2, "s3"),  # no s3fs
    ):
        with pytest.raises(OrchError, match=message) as exc_info:
            urls.download("data", url, print)
        assert (exc_info.value.exit_code, bool(exc_info.value.hint)) == (code, True)


def test_names_that_leave_the_folder_are_refused() -> None:
    for name in ("../x", "a//b", "/etc/x", "a/..", "a\nb", "."):
        with pytest.raises(OrchError, match="whose name cannot be used"):
            urls.check_name(name, "s3://bucket/set")
