"""Read files of a pod over a real websocket."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.exec import PodExec
from tests.support.kubernetes_api import Api, make_client

MIB = 1 << 20


@pytest.fixture
def cluster(api: Api) -> KubernetesClient:
    return make_client(api.url)


def test_large_file_is_read_in_small_chunks(cluster: KubernetesClient, tmp_path: Path) -> None:
    """Read slower than the API server sends, so that many frames are there at once."""
    content = os.urandom(16 * MIB)
    (tmp_path / "weights").write_bytes(content)
    digest, largest = hashlib.sha256(), 0
    for chunk in PodExec(cluster, "reader").chunks(str(tmp_path / "weights"), MIB):
        digest.update(chunk)
        largest = max(largest, len(chunk))
    assert digest.digest() == hashlib.sha256(content[MIB:]).digest()
    assert largest < 2 * MIB


def test_output_and_exit_code_of_a_program_are_returned(cluster: KubernetesClient, tmp_path: Path) -> None:
    text = "import sys; print('out' * 100_000); print('err', file=sys.stderr); sys.exit(7)"
    result = PodExec(cluster, "reader").capture(("python3", "-c", text), seconds=60)
    assert (result.code, result.err, len(result.out)) == (7, "err\n", 300_001)
    with pytest.raises(ExecuteError, match="No such file"):
        list(PodExec(cluster, "reader").chunks(str(tmp_path / "none"), 0))


def test_chunks_received_before_a_connection_breaks_are_returned(api: Api, cluster: KubernetesClient) -> None:
    """Return them so that the next attempt can continue there."""
    api.state.break_execs = 1
    chunks = PodExec(cluster, "reader").chunks(__file__, 0)
    assert next(chunks) == Path(__file__).read_bytes()
    with pytest.raises(ConnectionLost):
        next(chunks)
