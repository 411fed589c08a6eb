"""A hub on this machine: what the client of Hugging Face's hub needs of its API, over HTTP."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tests.support.http_server import QuietHandler, serve

LARGE = 1 << 16  # files from this size on are stored with git-lfs, as on the hub


@dataclass
class Repository:
    """A model (`kind` models) or data set (`datasets`)."""

    kind: str
    name: str
    files: dict[str, bytes]
    commit: str = "a" * 40
    branch: str = "main"
    token: str = ""  # without it, only the description can be read


@dataclass
class Hub:
    """A running hub.

    Attributes:
        repositories: what it has.
        cut: where the connection is closed once, as a byte of a file by its name.
        requests: method, path and range of each request.
    """

    repositories: list[Repository]
    cut: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)

    def __enter__(self) -> Hub:
        self._server = serve(type("Handler", (HubHandler,), {"state": self}))
        self.url = self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    def ranges(self, name: str) -> list[str]:
        """Return the ranges of a file that were requested; "" for the whole file."""
        return [part for method, path, part in self.requests if method == "GET" and path.endswith(f"/{name}")]

    def downloads(self) -> list[str]:
        """Return the files whose content was requested."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]


class HubHandler(QuietHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.state.requests.append((self.command, path, self.headers.get("Range", "")))
        for repository in self.state.repositories:
            api = f"/api/{repository.kind}/{repository.name}"
            prefix = "" if repository.kind == "models" else f"/{repository.kind}"
            content = f"{prefix}/{repository.name}/resolve/"
            if path == api or path.startswith(f"{api}/"):
                self.describe(repository, path[len(api) + 1 :])
                return
            if path.startswith(content):
                self.send_content(repository, path[len(content) :])
                return
        self.send(401, headers={"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})

    do_GET = do_HEAD = respond

    def describe(self, repository: Repository, path: str) -> None:
        """Send the commit of a revision (`revision/REVISION`), or the list of files (`tree/COMMIT`)."""
        endpoint, _, revision = path.partition("/")
        if revision not in ("", repository.branch, repository.commit):
            self.send(404, headers={"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        elif endpoint == "tree":
            self.send_json([describe_file(name, content) for name, content in repository.files.items()])
        else:
            siblings = [{"rfilename": name} for name in repository.files]
            self.send_json({"id": repository.name, "sha": repository.commit, "siblings": siblings, "tags": []})

    def send_content(self, repository: Repository, path: str) -> None:
        revision, _, name = path.partition("/")
        if repository.token and self.headers.get("Authorization") != f"Bearer {repository.token}":
            self.send(403, headers={"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        elif revision not in (repository.branch, repository.commit):
            self.send(404, headers={"X-Error-Code": "RevisionNotFound"})
        elif name not in repository.files:
            self.send(404, headers={"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commit})
        else:
            content = repository.files[name]
            headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{etag(content)}"', "Accept-Ranges": "bytes"}
            if len(content) >= LARGE:
                headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(content))}
            self.send_range(name, content, headers)

    def send_range(self, name: str, content: bytes, headers: dict[str, str]) -> None:
        range_ = self.headers.get("Range", "")
        first, _, last = range_.removeprefix("bytes=").partition("-")
        start, end = int(first or 0), min(int(last) + 1, len(content)) if last else len(content)
        if range_:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        cut = self.state.cut.get(name, end)
        is_cut = self.command == "GET" and start <= cut < end
        if is_cut:
            del self.state.cut[name]
        self.send(206 if range_ else 200, content[start:end], headers, sent=cut - start if is_cut else None)

    def send_json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, sent: int | None = None
    ) -> None:
        """Send a response; only its first `sent` bytes, after which the connection is closed."""
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])
        if sent is not None:
            self.close_connection = True


def etag(content: bytes) -> str:
    """Return the SHA-256 of a large file, and git's hash of another one."""
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def describe_file(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": etag(content)}
    if len(content) >= LARGE:
        entry["lfs"] = {"oid": etag(content), "size": len(content), "pointerSize": 134}
    return entry
