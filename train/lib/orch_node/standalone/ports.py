"""Check which ports of the other nodes this node can reach: `python ports.py SECONDS PORTS ADDRESS...`.

Every node runs this program with the same arguments, within these seconds. It listens at the ports of its address,
connects to those of all others, and prints a JSON object for each connection that fails.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

TRY_SECONDS = 3.0


def main(argv: list[str]) -> int:
    """Listen, connect to all peers, and print the connections that fail."""
    deadline = time.monotonic() + float(argv[0])
    ports, addresses = [int(port) for port in argv[1].split(",")], argv[2:]
    listeners = listen(ports, addresses)
    if not listeners:
        print(f"none of the addresses {' '.join(addresses)} can be used on this node", file=sys.stderr)
        return 1
    own_address = listeners[0].getsockname()[0]
    peers = [address for address in addresses if address != own_address]
    server = threading.Thread(target=accept_all, args=(listeners, len(peers) * len(ports), deadline))
    server.start()
    with ThreadPoolExecutor(max(1, len(peers) * len(ports))) as pool:
        attempts = [pool.submit(connect, (peer, port), own_address, deadline) for peer in peers for port in ports]
    server.join()
    for failure in filter(None, (attempt.result() for attempt in attempts)):
        print(json.dumps(failure), flush=True)
    return 0


def listen(ports: Sequence[int], addresses: Sequence[str]) -> list[socket.socket]:
    """Return sockets that listen at the ports of the one of the addresses that is of this node."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError):
            return [socket.create_server((address, port), family=family, backlog=1024) for port in ports]
    return []


def accept_all(listeners: Sequence[socket.socket], expected: int, deadline: float) -> None:
    """Accept and close connections until all peers have connected to all ports, or the time is over."""
    while expected > 0 and (remaining := deadline - time.monotonic()) > 0:
        for listener in select.select(listeners, [], [], remaining)[0]:
            connection, _ = listener.accept()
            connection.close()
            expected -= 1


def connect(peer: tuple[str, int], source: str, deadline: float) -> dict[str, object] | None:
    """Connect to a port, and again until it answers or the time is over; return the failure."""
    reason = ""
    while time.monotonic() < deadline:
        try:
            socket.create_connection(peer, TRY_SECONDS, source_address=(source, 0)).close()
            return None
        except OSError as error:  # the peer's program may not have started yet
            reason = error.strerror or str(error) or "timed out"
            time.sleep(0.2)
    return {"source": source, "destination": peer[0], "port": peer[1], "reason": reason}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
