"""Measure the TCP connections between all pairs of nodes, many pairs at a time.

The first ranks of the nodes play a round-robin tournament: in each round, every node is in one match. They send through
a process group of gloo, whose messages between two ranks share one connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from orch_node.events import report
from orch_training import ranks

TOTAL_SECONDS = 40.0  # for the transfers of all rounds
TRANSFER_SECONDS = (0.02, 0.3)  # the shortest and the longest transfer in one direction
MAX_PINGS, PING_SECONDS = 300, 0.2
CHUNK, MAX_CHUNKS = 1 << 18, 1 << 12
ROWS_PER_EVENT = 40

Match = tuple[int, int]
Row = dict[str, float]  # the peer's first rank, Gbit/s from the peer to this node, and microseconds one way


def measure_links() -> None:
    """Report the bandwidth from each other node to this one, and the latency."""
    first_ranks = [rank for rank, local in enumerate(ranks.gather(os.environ.get("LOCAL_RANK", "0"))) if local == "0"]
    if len(first_ranks) == 1:
        return
    shortest, longest = TRANSFER_SECONDS
    seconds = max(shortest, min(longest, TOTAL_SECONDS / (2 * len(first_ranks))))
    group = dist.new_group(first_ranks, backend="gloo")
    rows: list[Row] = []
    for matches in rounds(first_ranks):
        dist.barrier()
        rows += [measure_pair(match, group, seconds) for match in matches if ranks.rank() in match]
    for start in range(0, len(rows), ROWS_PER_EVENT):
        report("bench", part="links", rows=rows[start : start + ROWS_PER_EVENT])


def rounds(players: list[int]) -> Iterator[list[Match]]:
    """Yield the matches of each round of a tournament in which all players meet once (circle method)."""
    seats: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    half = len(seats) // 2
    for _ in range(len(seats) - 1):
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def measure_pair(match: Match, group: dist.ProcessGroup, seconds: float) -> Row:
    """Measure the connection with the other node of a match in both directions, and its latency."""
    peer = match[0] if ranks.rank() == match[1] else match[1]
    byte, chunk = torch.zeros(1, dtype=torch.uint8), torch.zeros(CHUNK, dtype=torch.uint8)

    def ping(count: int) -> None:
        for _ in range(count):
            for sender in match:
                (dist.recv if sender == peer else dist.send)(byte, peer, group)

    def transfer(sender: int, count: int) -> None:
        post = dist.irecv if sender == peer else dist.isend
        for message in [post(chunk, peer, group) for _ in range(count)]:
            message.wait()

    def seconds_of(action: Callable[[int], None], timer: int, seconds: float, most: int) -> float:
        """Repeat an action for about some seconds and return its mean duration; one node decides how often.

        The first repetition fills what queues absorb.
        """
        action(1)
        began = time.perf_counter()
        action(1)
        count = torch.tensor([max(1, min(most, int(seconds / max(time.perf_counter() - began, 1e-9))))])
        (dist.recv if timer == peer else dist.send)(count, peer, group)
        began = time.perf_counter()
        action(int(count))
        return (time.perf_counter() - began) / int(count)

    latency = seconds_of(ping, match[0], PING_SECONDS, MAX_PINGS) / 2 * 1e6
    for receiver, sender in (match, match[::-1]):
        transferred = seconds_of(partial(transfer, sender), receiver, seconds, MAX_CHUNKS)
        if sender == peer:
            gbit = CHUNK * 8 / transferred / 1e9
    return {"peer": peer, "gbit": gbit, "microseconds": latency}
