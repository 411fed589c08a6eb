"""Read files of a pod over a real websocket."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from orch_node.protocol import files

from orchestrator.errors import ConnectionLost
from orchestrator.targets.kubernetes.client import KubernetesClient
from orchestrator.targets.kubernetes.exec import PodExec
from orchestrator.targets.kubernetes.target import mark_volume
from tests.support.kubernetes_api import Api, make_client

MIB = 1 << 20


@pytest.fixture
def cluster(api: Api) -> KubernetesClient:
    return make_client(api.url)


def test_large_output_is_read_in_small_parts(cluster: KubernetesClient, tmp_path: Path) -> None:
    """Read slower than the API server sends, so that many frames are there at once."""
    content = os.urandom(16 * MIB)
    (tmp_path / "weights").write_bytes(content)
    digest = hashlib.sha256()
    with PodExec(cluster, "reader").open_program(("cat", str(tmp_path / "weights"))) as program:
        while part := program.output.read(MIB):
            digest.update(part)
    assert digest.digest() == hashlib.sha256(content).digest()


def test_output_before_a_connection_breaks_is_returned(api: Api, cluster: KubernetesClient) -> None:
    """Return it so that the next attempt can continue there."""
    api.state.break_execs = 1
    with PodExec(cluster, "reader").open_program(("cat", __file__)) as program:
        assert program.output.read() == Path(__file__).read_bytes()
        assert isinstance(program.failure(), ConnectionLost)


def test_stopped_run_is_marked_by_a_second_pod_if_the_first_does_not_respond(
    api: Api, cluster: KubernetesClient, tmp_path: Path
) -> None:
    api.fail_requests("GET", "pods/lost/exec", 500, times=9)
    mark_volume(cluster, str(tmp_path), ["lost", "living"])
    assert (tmp_path / files.STOP).exists()
