"""`exec` of the test API server: a websocket (RFC 6455) with Kubernetes' channels."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
from typing import Any

MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
STDOUT, STDERR, ERROR = 1, 2, 3
PROTOCOL = "v4.channel.k8s.io"


def serve(request: Any, query: dict[str, list[str]]) -> None:
    """Run the command here, as if this machine were the pod."""
    key = request.headers["Sec-WebSocket-Key"]
    accept = base64.b64encode(hashlib.sha1(f"{key}{MAGIC}".encode()).digest()).decode()
    request.send_response(101)
    headers = {
        "Upgrade": "websocket", "Connection": "Upgrade",
        "Sec-WebSocket-Accept": accept, "Sec-WebSocket-Protocol": PROTOCOL,
    }  # fmt: skip
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    done = subprocess.run(query["command"], capture_output=True, stdin=subprocess.DEVNULL)
    for channel, data in ((STDOUT, done.stdout), (STDERR, done.stderr)):
        for at in range(0, len(data), 30_000):
            send(request, 2, bytes([channel]) + data[at : at + 30_000])
    send(request, 2, bytes([ERROR]) + json.dumps(ending(done.returncode)).encode())
    send(request, 8, struct.pack(">H", 1000))
    request.close_connection = True


def ending(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": f"command terminated with exit code {code}", "details": {"causes": causes},
    }  # fmt: skip


def send(request: Any, opcode: int, data: bytes) -> None:
    head = bytes([0x80 | opcode])
    if len(data) < 126:
        head += bytes([len(data)])
    elif len(data) < 65536:
        head += struct.pack(">BH", 126, len(data))
    else:
        head += struct.pack(">BQ", 127, len(data))
    request.wfile.write(head + data)
    request.wfile.flush()
