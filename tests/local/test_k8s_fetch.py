"""Files out of a pod, over a real websocket."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.exec import PodExec
from tests.local.test_kube import api
from tests.support.kube_api import Api, client_of

__all__ = ["api"]

MIB = 1 << 20


@pytest.fixture
def cluster(api: Api) -> Kube:
    return client_of(api.url)


def test_a_file_is_given_in_pieces_and_never_held_whole(cluster: Kube, tmp_path: Path) -> None:
    """Also where the reader is slower than the API server, and all frames are there at once."""
    content = os.urandom(16 * MIB)
    (tmp_path / "weights").write_bytes(content)
    digest, largest = hashlib.sha256(), 0
    for chunk in PodExec(cluster, "reader").chunks(str(tmp_path / "weights"), MIB):
        digest.update(chunk)
        largest = max(largest, len(chunk))
    assert digest.digest() == hashlib.sha256(content[MIB:]).digest()
    assert largest < 2 * MIB


def test_what_a_program_says_and_how_it_ends(cluster: Kube, tmp_path: Path) -> None:
    text = "import sys; print('out' * 100_000); print('err', file=sys.stderr); sys.exit(7)"
    answer = PodExec(cluster, "reader").capture(("python3", "-c", text), seconds=60)
    assert (answer.code, answer.err, len(answer.out)) == (7, "err\n", 300_001)
    with pytest.raises(ExecuteError, match="No such file"):
        list(PodExec(cluster, "reader").chunks(str(tmp_path / "none"), 0))


def test_a_connection_that_breaks_gives_what_has_come(api: Api, cluster: Kube) -> None:
    """So that the next time goes on there."""
    api.state.break_execs = 1
    chunks = PodExec(cluster, "reader").chunks(__file__, 0)
    assert next(chunks) == Path(__file__).read_bytes()
    with pytest.raises(ConnectionLost):
        next(chunks)
