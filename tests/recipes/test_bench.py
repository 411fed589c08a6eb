"""The parts of the recipe `bench` that need no ranks."""

from __future__ import annotations

import socket
import subprocess
import sys
from itertools import combinations

import pytest

from orchestrator.files import STANDALONE, TRAIN


@pytest.fixture(autouse=True)
def bench_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TRAIN / "recipes/bench"))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_tournament_pairs_all_players_once_and_each_at_most_once_per_round(count: int) -> None:
    from run_bench import rounds

    played = list(rounds(list(range(0, 2 * count, 2))))
    assert sorted(match for matches in played for match in matches) == list(combinations(range(0, 2 * count, 2), 2))
    for matches in played:
        players = [player for match in matches for player in match]
        assert len(players) == len({*players})


def test_port_that_a_peer_does_not_open_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        program = [sys.executable, str(STANDALONE / "ports.py"), "1", str(port), "127.0.0.2", "127.0.0.1", "127.0.0.3"]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"source": "127.0.0.2", "destination": "127.0.0.3"' in done.stdout
    assert '"destination": "127.0.0.1"' not in done.stdout
