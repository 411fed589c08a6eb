"""Fixtures that several files share: an sshd, a node behind it, two hosts, a test API server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import report_missing
from tests.local.kubernetes_runs import KubernetesRun, start_run
from tests.local.recipes import PAIR_MODEL, QA_MODEL, prepare_pretraining_data
from tests.local.runs import Orch
from tests.local.ssh_node import SshNode, make_ssh_node
from tests.local.workspaces import Workspace, make_hosts
from tests.support.hosts import accepts_connections
from tests.support.jobs import make_tiny_bert
from tests.support.kubernetes_api import Api
from tests.support.ports import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def one_host(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Return a workspace that trains on two ranks of this machine."""
    return Workspace(tmp_path_factory.mktemp("one"), "--ppn", "2")


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Yield a workspace that trains on one rank of each of two hosts."""
    with make_hosts(tmp_path_factory.mktemp("two"), "--ppn", "1") as workspace:
        yield workspace


@pytest.fixture
def sftp_server() -> str:
    """Return the program that serves files of the test sshd."""
    return "internal-sftp"


@pytest.fixture
def sshd(tmp_path: Path, sftp_server: str) -> Iterator[str]:
    """Start an sshd with new keys and yield an ssh configuration with the hosts `far` and `node0`."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        report_missing("no sshd: apt-get install openssh-server")
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = free_port()
    shutil.copy(folder / "user.pub", folder / "authorized")
    key = (folder / "host.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nPidFile none\n"
        f"PermitRootLogin prohibit-password\nSubsystem sftp {sftp_server}\n"
    )
    config = folder / "config"
    config.write_text(
        f"Host far node0\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {folder}/user\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    wait_until(lambda: accepts_connections("127.0.0.1", port), "an sshd", seconds=10)
    yield str(config)
    server.terminate()
    server.wait()


@pytest.fixture
def ssh_node(tmp_path: Path, sshd: str) -> SshNode:
    """Return the node `far` of the inventory lab.yaml, which is behind a real sshd."""
    return make_ssh_node(tmp_path, sshd)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Start a test API server, to which the kubeconfig and the settings in tmp_path lead."""
    with Api() as server:
        (tmp_path / "orch-k8s.toml").write_text(
            f'image = "registry.example/orch:current"\ncpu = "2"\nmount = "{tmp_path}/volume"\n'
            f'root = "{ROOT}"\npython = "{sys.executable}"\nfiles = "{tmp_path}/files"\n'
        )
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        yield server


@pytest.fixture
def run(api: Api, orch: Orch, tmp_path: Path) -> KubernetesRun:
    """Start a detached run on two pods of the test API server."""
    return start_run(api, orch, tmp_path)


@pytest.fixture(scope="session")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder to import Lightning from, without installing it in the stack."""
    wheels = ("lightning==2.6.6", "torchmetrics==1.9.0", "lightning-utilities==0.15.3")
    return download_wheels(tmp_path_factory.mktemp("lightning"), *wheels)


def download_wheels(folder: Path, *requirements: str) -> str:
    """Download and unpack wheels, and return the folder to import them from."""
    options = ["--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, *requirements], check=True)
    for path in folder.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder)
    return str(folder)


@pytest.fixture(scope="session")
def qa_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random BERT for questions, 32 wide, with 2 layers."""
    return make_tiny_bert(tmp_path_factory.mktemp("qa") / "tiny", QA_MODEL, layers=2)


@pytest.fixture(scope="session")
def pair_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random BERT for pairs of sentences, 32 wide, with 2 layers."""
    return make_tiny_bert(tmp_path_factory.mktemp("pairs") / "tiny", PAIR_MODEL, layers=2)


@pytest.fixture(scope="session")
def pretraining_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return prepared data for both phases of bert-pretrain, for a BERT that is 32 wide."""
    return prepare_pretraining_data(tmp_path_factory.mktemp("pretraining"))
