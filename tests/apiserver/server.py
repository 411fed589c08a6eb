"""The server of a test: etcd and kube-apiserver on ports of this machine, an admin, and a user."""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.apiserver.build import built_programs
from tests.support.ports import free_port

START_SECONDS = 60.0
NAMESPACE = "team"
USER = "user"


class Server:
    """`folder`: its data. What the tests do themselves they do as admin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = folder / "certificates"
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", USER)}
        self.url = f"https://127.0.0.1:{free_port()}"

    def request(self, method: str, path: str, body: Any = None, kind: str = "json") -> Any:
        """Raises HTTPError."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=json.dumps(body).encode() if body else None,
            headers={"Authorization": f"Bearer {self.tokens['admin']}", "Content-Type": f"application/{kind}"},
        )
        trusted = ssl.create_default_context(cafile=self.certificates / "apiserver.crt")
        with urllib.request.urlopen(request, context=trusted, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def ready(self) -> bool:
        with suppress(OSError):  # also HTTPError
            return bool(self.request("GET", "/readyz") == "ok")
        return False

    def status(self, path: str, value: Any) -> Any:
        """Say how an object is, as its controller would."""
        patch = {"status": value}
        return self.request("PATCH", f"{path}/status", patch, "merge-patch+json")

    def write_kubeconfig(self, path: Path) -> Path:
        """Of the user."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "clusters": [
                {
                    "name": "real",
                    "cluster": {"server": self.url, "certificate-authority": str(self.certificates / "apiserver.crt")},
                }
            ],
            "users": [{"name": USER, "user": {"token": self.tokens[USER]}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": USER, "namespace": NAMESPACE}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path


@contextmanager
def run_server(folder: Path) -> Iterator[Server]:
    """Raises AssertionError with its last words if it does not start."""
    found = built_programs()
    assert found is not None
    apiserver, etcd = found
    server = Server(folder)
    server.certificates.mkdir()
    tokens = folder / "tokens.csv"
    tokens.touch(0o600)
    groups = {"admin": "system:masters", USER: ""}
    tokens.write_text("".join(f'{token},{name},{name},"{groups[name]}"\n' for name, token in server.tokens.items()))
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    at = f"http://127.0.0.1:{free_port()}"
    store = [
        etcd,
        "--data-dir",
        folder / "etcd",
        "--unsafe-no-fsync",
        "--listen-client-urls",
        at,
        "--advertise-client-urls",
        at,
        "--listen-peer-urls",
        f"http://127.0.0.1:{free_port()}",
    ]
    api = [
        apiserver,
        f"--etcd-servers={at}",
        "--bind-address=127.0.0.1",
        f"--secure-port={server.url.rpartition(':')[2]}",
        f"--cert-dir={server.certificates}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://localhost",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
    ]
    log = folder / "server.log"
    with log.open("wb") as words:
        processes = [subprocess.Popen(one, stdout=words, stderr=words) for one in (store, api)]
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.ready():
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        yield server
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(20)


def exists(server: Server, path: str) -> bool:
    try:
        server.request("GET", path)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False
    return True
