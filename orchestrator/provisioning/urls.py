"""Downloads a file or a folder of a URL with fsspec: https, S3, Google Cloud Storage and others."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from orch_node import atomic_write

from orchestrator.errors import ExecuteError, OrchError, RequestError
from orchestrator.files import cache_home, exclusive, link_or_copy, private_folder
from orchestrator.model.printable import counted, one_line
from orchestrator.provisioning.wheelhouse import lock_file

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
CHUNK = 8 << 20
# Fields with which file systems of fsspec name the version of a file.
VERSIONS = ("ETag", "etag", "md5Hash", "generation", "Last-Modified", "LastModified", "mtime")
QUERY, USER = re.compile(r"(://[^\s?'\")]+)\?[^\s'\")]*"), re.compile(r"://[^\s/@]+@")
MD5 = re.compile(r'"?([0-9a-f]{32})"?')
LONGEST_REASON = 500  # characters of a message of fsspec or of the hub's client
# The extras `data`, `s3` and `gcs` have them.
HTTP_PACKAGE = "fsspec[http]>=2024.6"
PACKAGES = {"s3": "s3fs>=2024.6", "s3a": "s3fs>=2024.6", "gs": "gcsfs>=2024.6", "gcs": "gcsfs>=2024.6"}


def is_url(text: str) -> bool:
    """Return whether a text is a URL."""
    return URL.match(text) is not None


def without_secrets(url: str) -> str:
    """Return a URL without its user, password, query and fragment, which may be secrets."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def hide_secrets(message: str) -> str:
    """Return a message without the users, passwords and queries of the URLs in it."""
    return USER.sub("://", QUERY.sub(r"\1", message))


def download(kind: str, url: str, note: Callable[[str], None]) -> Path:
    """Return a local copy of a file or folder; files of the same version are not downloaded again.

    Args:
        kind: `model` or `data`, the option's name.
        url: the URL; that of a folder on a web server ends with a slash.
        note: receives lines about what takes long.

    Raises:
        OrchError: if there is no such file or folder, or the download fails.
    """
    name = unquote(PurePosixPath(urlsplit(url).path).name) or urlsplit(url).netloc
    check_name(name, url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    option, scheme = f"--{kind} {without_secrets(url)}", urlsplit(url).scheme
    problem = f"{scheme}-download" if scheme in ("s3", "gs") else "url-download"
    package = PACKAGES.get(scheme, HTTP_PACKAGE)
    with explained_errors(option, problem, package), exclusive(lock_file(f"url-{digest}")):
        from fsspec.core import url_to_fs

        filesystem, path = url_to_fs(url)
        remote = list_files(filesystem, path, is_folder=url.endswith("/"))
        folder = private_folder(cache_home() / "urls" / digest)
        files = private_folder(folder / "files")
        keys = {file: hashlib.sha256(f"{file}\0{version(info)}".encode()).hexdigest() for file, info in remote.items()}
        # A file whose version the server does not name may be another one.
        outdated = [file for file in sorted(remote) if not (version(remote[file]) and (files / keys[file]).is_file())]
        if outdated:
            note(f"{without_secrets(url)}: downloading {counted(len(outdated), 'file')}")
        for file in outdated:
            download_file(filesystem, remote[file], files / keys[file])
        content = folder / "content"
        unused = [path for path in files.iterdir() if path.name not in keys.values()]
        if outdated or unused or not content.exists():
            for leftover in folder.glob(f"{content.name}*"):  # also the parts of a download that was killed
                shutil.rmtree(leftover)
            with atomic_write.folder(content) as new:
                for file, key in keys.items():
                    target = new / name / file  # a single file is `.`
                    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    link_or_copy(files / key, target)
        for path in unused:
            path.unlink()
    return content / name


@contextlib.contextmanager
def explained_errors(option: str, problem: str, package: str) -> Iterator[None]:
    """Convert the errors of a download, for which file systems have no common class, and of a missing package.

    The message is that of the file system or of the hub's client, or that of its cause.
    """
    try:
        yield
    except OrchError:
        raise
    except ImportError as error:
        raise RequestError(f"{option}: {one_line(str(error))}.", hint=f"pip install '{package}'") from None
    except Exception as error:
        cause: BaseException = error
        while inner := cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__):
            cause = inner
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", 0) or getattr(cause, "status", 0)
        is_wrong = 400 <= status < 500 or (cause is error and isinstance(error, ValueError | FileNotFoundError))
        reason = describe_error(error if response is not None else cause)
        kind = RequestError if is_wrong else ExecuteError
        raise kind.about(problem, option=option, reason=reason) from None


def list_files(filesystem: Any, path: str, *, is_folder: bool) -> dict[str, Mapping[str, Any]]:
    """Return what the file system says about each file, by its path in the folder; of a single file, by ".".

    Raises:
        FileNotFoundError: if there is no such file, or no file in the folder.
    """
    path = path.rstrip("/")
    info = {} if is_folder else filesystem.info(path)
    if not is_folder and info.get("type") != "directory":
        return {".": info}
    files = {}
    # A web server lists the links of a page, and those to other folders do not belong to this one.
    for key, entry in filesystem.find(f"{path}/", detail=True).items():
        if key.startswith(f"{path}/"):
            name = key[len(path) + 1 :]
            check_name(name, path)
            files[name] = entry if entry.get("size") is not None else filesystem.info(key)
    if not files:
        raise FileNotFoundError(path)
    return files


def check_name(name: str, source: str) -> None:
    """Raise RequestError if a name from a server is not that of a file below a folder."""
    if not name.isprintable() or any(part in ("", ".", "..") for part in name.split("/")):
        raise RequestError.about("name-in-download", source=without_secrets(source), name=one_line(name))


def describe_error(error: BaseException) -> str:
    """Return an error's message as one line, or the name of its class, without secrets."""
    return hide_secrets(one_line(" ".join(str(error).split()) or type(error).__name__))[:LONGEST_REASON]


def download_file(filesystem: Any, info: Mapping[str, Any], path: Path) -> None:
    """Download a file; an interrupted download of the same version continues where it stopped.

    Raises:
        ExecuteError: if the file is incomplete or damaged.
    """
    key, size = info["name"], info.get("size")
    part = path.with_suffix(".part")
    with filesystem.open(key, "rb") as source, part.open("ab") as target:
        offset = target.tell() if version(info) else 0
        if offset:
            try:
                source.seek(offset)
            except (ValueError, NotImplementedError):  # a server that sends whole files only
                offset = 0
        target.truncate(offset)
        shutil.copyfileobj(source, target, CHUNK)
    if size is not None and part.stat().st_size != size:
        raise ExecuteError.about("incomplete-download", file=hide_secrets(key), received=part.stat().st_size, size=size)
    expected = announced_md5(filesystem, info)
    if expected and md5(part) != expected:
        part.unlink()
        raise ExecuteError.about("damaged-download", file=hide_secrets(key), expected=expected)
    part.replace(path)


def version(info: Mapping[str, Any]) -> str:
    """Return what distinguishes the versions of a file, with its size; empty if the server does not name one."""
    value = next((str(info[field]) for field in VERSIONS if info.get(field)), "")
    return f"{value} {info.get('size')}" if value else ""


def announced_md5(filesystem: Any, info: Mapping[str, Any]) -> str:
    """Return the MD5 that the server announces for a file as hexadecimal digits; empty if there is none.

    The ETag of S3 is one unless the file was uploaded in parts or is encrypted with a key of KMS.
    """
    if text := info.get("md5Hash") or info.get("Content-MD5"):
        with contextlib.suppress(ValueError):
            return base64.b64decode(text, validate=True).hex()
        return ""
    match = MD5.fullmatch(str(info.get("ETag") or ""))
    if match is None or "s3" not in filesystem.protocol:
        return ""
    bucket, key, _ = filesystem.split_path(info["name"])
    head = filesystem.call_s3("head_object", Bucket=bucket, Key=key)
    is_plain = head.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in head
    return match.group(1) if is_plain else ""


def md5(path: Path) -> str:
    """Return the MD5 of a file."""
    total = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            total.update(block)
    return total.hexdigest()
