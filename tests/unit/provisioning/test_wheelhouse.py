"""Check that two processes do not fill the cache at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

from orchestrator.files import exclusive


def test_lock_of_a_file_serializes_its_holders(tmp_path: Path) -> None:
    order = []

    def wait() -> None:
        with exclusive(tmp_path / "bindings.lock"):
            order.append("second")

    thread = threading.Thread(target=wait)
    with exclusive(tmp_path / "bindings.lock"), exclusive(tmp_path / "another.lock"):
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
