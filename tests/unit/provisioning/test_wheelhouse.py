"""Check that two processes do not fill the cache at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchestrator.provisioning.wheelhouse import exclusive


def test_exclusive_serializes_processes_with_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    order = []

    def wait() -> None:
        with exclusive("bindings"):
            order.append("second")

    thread = threading.Thread(target=wait)
    with exclusive("bindings"), exclusive("another"):
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
