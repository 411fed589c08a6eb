"""Downloads a file or a folder of a URL with fsspec: https, S3, Google Cloud Storage and others."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from orchestrator.errors import ExecuteError, OrchError, RequestError
from orchestrator.files import cache_home, exclusive, private_folder, write_whole
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
CREDENTIALS = {
    "s3": "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a public bucket FSSPEC_S3_ANON=true.",
    "gs": "Log in with `gcloud auth application-default login`; for a public bucket set FSSPEC_GS_TOKEN=anon.",
}


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
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise missing_package(kind, url, "fsspec is not installed.") from None
    option = f"--{kind} {without_secrets(url)}"
    hint = CREDENTIALS.get(urlsplit(url).scheme, "Check the URL, the connection, the proxy and the free space.")
    hint += " The command continues where it was interrupted."
    name = unquote(PurePosixPath(urlsplit(url).path).name) or urlsplit(url).netloc
    check_name(name, url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    try:
        filesystem, path = url_to_fs(url)
        remote = list_files(filesystem, path, is_folder=url.endswith("/"))
    except ImportError as error:
        raise missing_package(kind, url, one_line(str(error))) from None
    except ValueError as error:
        raise RequestError(
            f"{option}: {one_line(str(error))}.",
            hint="Use https://, s3://, gs:// or another kind of URL that fsspec knows.",
        ) from None
    except Exception as error:  # file systems have no common class of errors
        raise download_error(option, error, hint) from None
    with exclusive(lock_file(f"url-{digest}")):
        copy = Copy(private_folder(cache_home() / "urls" / digest), name)
        outdated = copy.outdated(remote)
        if outdated:
            note(f"{without_secrets(url)}: downloading {counted(len(outdated), 'file')}")
        copy.delete_others(remote)
        for file in outdated:
            try:
                copy.download(filesystem, file, remote[file])
            except OrchError:
                raise
            except Exception as error:
                raise download_error(option, error, hint) from None
        copy.delete_parts()
    return copy.content


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
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise RequestError(
            f"{without_secrets(source)} has a file whose name cannot be used: {one_line(name)!r}.",
            hint="Rename it at its source.",
        )


def missing_package(kind: str, url: str, message: str) -> RequestError:
    package = PACKAGES.get(urlsplit(url).scheme, HTTP_PACKAGE)
    return RequestError(f"--{kind} {without_secrets(url)}: {message}", hint=f"pip install '{package}'")


def download_error(option: str, error: Exception, hint: str) -> OrchError:
    """Return the error for what a file system or the hub's client has raised, with its message or that of its cause."""
    *_, cause = chain(error)
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", 0) or getattr(cause, "status", 0)
    is_wrong = 400 <= status < 500 or (cause is error and isinstance(error, ValueError | FileNotFoundError))
    reason = describe_error(error if response is not None else cause)
    return (RequestError if is_wrong else ExecuteError)(f"{option}: it cannot be downloaded: {reason}", hint=hint)


def describe_error(error: BaseException) -> str:
    """Return an error's message as one line, or the name of its class, without secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    return hide_secrets(one_line(text))[:LONGEST_REASON]


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class Copy:
    """A local copy of the files of a URL.

    Attributes:
        content: the file or folder.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.content = folder / "content" / name
        self._parts = folder / "parts"
        self._index = folder / "versions.json"
        self._parts.mkdir(exist_ok=True, mode=0o700)
        self._versions = json.loads(self._index.read_text()) if self._index.exists() else {}

    def path(self, name: str) -> Path:
        """Return where a file is, or will be."""
        return self.content if name == "." else self.content / name

    def outdated(self, remote: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return the files that are missing here, have another version, or whose version the server does not name."""
        return [
            name
            for name, info in sorted(remote.items())
            if not version(info) or self._versions.get(name) != version(info) or not self.path(name).is_file()
        ]

    def download(self, filesystem: Any, name: str, info: Mapping[str, Any]) -> None:
        """Download a file; an interrupted download of the same version continues where it stopped.

        Raises:
            ExecuteError: if the file is incomplete or damaged.
        """
        key, size = info["name"], info.get("size")
        part = self._parts / hashlib.sha256(f"{name}\0{version(info)}".encode()).hexdigest()
        with filesystem.open(key, "rb") as source, part.open("ab") as target:
            offset = target.tell() if version(info) else 0
            if offset:
                try:
                    source.seek(offset)
                except (ValueError, NotImplementedError):  # a server that sends whole files only
                    offset = 0
            target.truncate(offset)
            while block := source.read(CHUNK):
                target.write(block)
        expected = announced_md5(filesystem, info)
        if size is not None and part.stat().st_size != size:
            raise ExecuteError(
                f"{hide_secrets(key)}: {part.stat().st_size} of {size} bytes were received.",
                hint="Run the command again; it continues where it was interrupted.",
            )
        if expected and md5(part) != expected:
            part.unlink()
            raise ExecuteError(
                f"{hide_secrets(key)} was damaged: its MD5 is not {expected}.", hint="Run the command again."
            )
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.replace(path)
        self._versions[name] = version(info)
        write_whole(self._index, json.dumps(self._versions, indent=1) + "\n")

    def delete_others(self, remote: Mapping[str, Mapping[str, Any]]) -> None:
        """Delete files that are no longer at the source."""
        for name in self._versions.keys() - remote.keys():
            self.path(name).unlink(missing_ok=True)
        self._versions = {name: text for name, text in self._versions.items() if name in remote}
        write_whole(self._index, json.dumps(self._versions, indent=1) + "\n")

    def delete_parts(self) -> None:
        """Delete interrupted downloads of other versions."""
        for part in self._parts.iterdir():
            part.unlink()


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
