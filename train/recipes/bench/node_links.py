"""Measure the TCP connections between all pairs of nodes, many pairs at a time.

The first ranks of the nodes play a round-robin tournament: in each round, every node is in one match.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import time
from collections.abc import Iterator

import torch.distributed as dist
from node_state import local_address
from orch_training import ranks
from orch_training.events import report

TOTAL_SECONDS = 40.0  # for the transfers of all rounds
TRANSFER_SECONDS = (0.02, 0.3)  # the shortest and the longest transfer in one direction
CONNECT_SECONDS = 10.0
PINGS, PING_SECONDS, WARM_UP = 300, 0.2, 20
CHUNK = 1 << 20
ROWS_PER_EVENT = 40

Match = tuple[int, int]
Row = tuple[int, float, float]  # the peer's first rank, Gbit/s from the peer to this node, and microseconds one way


def measure_links() -> None:
    """Report the bandwidth from each other node to this one, and the latency; 0 if a connection fails."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    with listen(local_address()) if is_first else socket.socket() as listener:
        endpoint = [*listener.getsockname()[:2]] if is_first else None
        addresses = {rank: (str(value[0]), int(value[1])) for rank, value in enumerate(ranks.gather(endpoint)) if value}
        rows: list[Row] = []
        if len(addresses) == 1:
            return
        for matches in rounds(sorted(addresses)):
            dist.barrier()
            match = next((match for match in matches if ranks.rank() in match), None)
            if match:
                rows.append(measure_pair(match, listener, addresses, transfer_seconds(len(addresses))))
    for start in range(0, len(rows), ROWS_PER_EVENT):
        peers, gbit, microseconds = zip(*rows[start : start + ROWS_PER_EVENT], strict=True)
        report("bench", part="links", peers=peers, gbit=gbit, microseconds=microseconds)


def listen(address: str) -> socket.socket:
    """Return a socket that listens at a free port of an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    listener.settimeout(CONNECT_SECONDS)
    return listener


def transfer_seconds(nodes: int) -> float:
    """Return the duration of a transfer, such that all rounds end in time."""
    shortest, longest = TRANSFER_SECONDS
    return max(shortest, min(longest, TOTAL_SECONDS / (2 * nodes)))


def rounds(players: list[int]) -> Iterator[list[Match]]:
    """Yield the matches of each round of a tournament in which all players meet once (circle method)."""
    seats: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    half = len(seats) // 2
    for _ in range(len(seats) - 1):
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def measure_pair(match: Match, listener: socket.socket, addresses: dict[int, tuple[str, int]], seconds: float) -> Row:
    """Measure the connections with the other node of a match, of which the first listens."""
    first, second = match
    accepts = ranks.rank() == first
    peer = second if accepts else first

    def connect() -> socket.socket:
        link = (
            accept(listener, addresses[peer][0])
            if accepts
            else socket.create_connection(addresses[peer], CONNECT_SECONDS)
        )
        link.settimeout(CONNECT_SECONDS)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link

    try:
        with connect() as link:
            latency = answer_pings(link) if accepts else ping(link)
        gbit = 0.0
        for sender in match:
            with connect() as link:
                if sender == peer:
                    gbit = receive(link, seconds)
                else:
                    send(link, seconds)
        return peer, gbit, latency
    except OSError:  # the row shows that the link does not work
        return peer, 0.0, 0.0


def accept(listener: socket.socket, address: str) -> socket.socket:
    """Return the connection from an address; others are closed."""
    while True:
        link, source = listener.accept()
        if source[0] == address:
            return link
        link.close()


def ping(link: socket.socket) -> float:
    """Return the median latency of one byte one way, in microseconds."""
    durations, began = [], time.perf_counter()
    while len(durations) < PINGS and time.perf_counter() - began < PING_SECONDS:
        sent = time.perf_counter()
        link.sendall(b"p")
        link.recv(1)
        durations.append(time.perf_counter() - sent)
    return statistics.median(durations[WARM_UP:] or durations) / 2 * 1e6


def answer_pings(link: socket.socket) -> float:
    """Send each byte back until the peer has finished, which knows the latency."""
    while byte := link.recv(1):
        link.sendall(byte)
    return 0.0


def send(link: socket.socket, seconds: float) -> None:
    """Send for some seconds."""
    chunk, end = bytes(CHUNK), time.perf_counter() + seconds
    with contextlib.suppress(ConnectionError):  # the receiver closes a slow link as soon as it knows the bandwidth
        while time.perf_counter() < end:
            link.sendall(chunk)


def receive(link: socket.socket, seconds: float) -> float:
    """Return the bandwidth of what the peer sends in Gbit/s, without its first chunk, which queues may absorb."""
    buffer, total, counted = bytearray(CHUNK), 0, 0
    began = started = time.perf_counter()
    while size := link.recv_into(buffer):
        now = time.perf_counter()
        total += size
        if total - size < CHUNK <= total:
            started, counted = now, total
        if now - began > 4 * seconds:  # what a slow link still holds does not change the result
            break
    elapsed = time.perf_counter() - started
    return (total - counted) * 8 / max(elapsed, 1e-6) / 1e9
