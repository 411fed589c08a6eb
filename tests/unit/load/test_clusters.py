"""Tests for orchestrator.load.clusters."""

from __future__ import annotations

from pathlib import Path

from orchestrator.load.clusters import local_facts


def test_fabrics_of_this_machine_are_queried_once_when_they_are_needed(tmp_path: Path) -> None:
    program, calls = tmp_path / "bin/libfabric/fi_info", tmp_path / "calls"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho called >> {calls}\nprintf 'tcp:\\n'\n")
    program.chmod(0o755)
    result = local_facts(str(tmp_path / "bin/python")).fabrics
    assert not calls.exists()
    assert (result["tcp"], result["shm"]) == ("", "no such provider")
    assert len(result) == len(dict(result))
    assert calls.read_text().splitlines() == ["called"]
