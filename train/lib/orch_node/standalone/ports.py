"""Check which ports of the other nodes this node can reach: `python ports.py SECONDS PORTS ADDRESS...`.

Every node runs this program with the same arguments, within these seconds. It listens at the ports of its address,
connects to those of all others, and prints a JSON object for each connection that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time

TRY_SECONDS = 3.0


async def main(argv: list[str]) -> int:
    """Listen, connect to all peers, and print the connections that fail."""
    deadline = time.monotonic() + float(argv[0])
    ports, addresses = [int(port) for port in argv[1].split(",")], argv[2:]
    accepted: asyncio.Queue[None] = asyncio.Queue()

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        accepted.put_nowait(None)

    servers: list[asyncio.Server] = []
    for address in addresses:
        with contextlib.suppress(OSError):  # the address of another node
            servers = [await asyncio.start_server(accept, address, port, backlog=1024) for port in ports]
            break
    if not servers:
        print(f"none of the addresses {' '.join(addresses)} can be used on this node", file=sys.stderr)
        return 1
    own_address = servers[0].sockets[0].getsockname()[0]
    peers = [(address, port) for address in addresses if address != own_address for port in ports]
    failures = await asyncio.gather(*(connect(peer, own_address, deadline) for peer in peers))
    with contextlib.suppress(asyncio.TimeoutError):  # others may still have to connect to this node
        for _ in peers:
            await asyncio.wait_for(accepted.get(), max(0.0, deadline - time.monotonic()))
    for failure in filter(None, failures):
        print(json.dumps(failure), flush=True)
    return 0


async def connect(peer: tuple[str, int], source: str, deadline: float) -> dict[str, object] | None:
    """Connect to a port, and again until it answers or the time is over; return the failure."""
    reason = ""
    while time.monotonic() < deadline:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(*peer, local_addr=(source, 0)), TRY_SECONDS)
            writer.close()
            return None
        except (OSError, asyncio.TimeoutError) as error:  # the peer's program may not have started yet
            number = getattr(error, "errno", None)
            reason = os.strerror(number) if number else "timed out"
            await asyncio.sleep(0.2)
    return {"source": source, "destination": peer[0], "port": peer[1], "reason": reason}


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
