"""Start torchrun in a pod."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from orch_node.pod import main
from orch_node.protocol.pod import PodConfig


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the handlers of signals that a pod replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_lines_that_ranks_write_while_torchrun_starts_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip only what an earlier pod has relayed, not what the first ranks write before torchrun has started."""
    log = tmp_path / "ranks" / "rank-0.log"
    log.parent.mkdir()

    def start(*_: str, key: bytes | None) -> subprocess.Popen[bytes]:
        log.write_text("line of a rank")
        return cast("subprocess.Popen[bytes]", SimpleNamespace(arguments=_, key=key))

    monkeypatch.setattr(main, "start", start)
    config: Any = SimpleNamespace(run_dir=str(tmp_path))
    torchrun = main.Torchrun(cast("PodConfig", config), ["--nproc_per_node=1"], None)
    assert torchrun.relay.before == {}
