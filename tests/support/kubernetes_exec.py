"""Serve `exec` of the test API server over a websocket (RFC 6455) with Kubernetes' channels."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import select
import socket
import struct
import subprocess
import threading
from typing import IO, Any

from websocket import ABNF, STATUS_NORMAL, WebSocketException
from websocket._abnf import frame_buffer

MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
STDIN, STDOUT, STDERR, ERROR = 0, 1, 2, 3
PROTOCOL = "v4.channel.k8s.io"
MAX_DATA = 32 * 1024  # bytes that Kubernetes reads of a program's output at once


def serve_exec(request: Any, query: dict[str, list[str]]) -> None:
    """Run a command on this machine, as if it were the pod."""
    key = request.headers["Sec-WebSocket-Key"]
    accept = base64.b64encode(hashlib.sha1(f"{key}{MAGIC}".encode()).digest()).decode()
    request.send_response(101)
    headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
    headers |= {"Sec-WebSocket-Accept": accept, "Sec-WebSocket-Protocol": PROTOCOL}
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    try:
        code = run_command(request, query["command"], stdin=query.get("stdin", [""])[0].lower() == "true")
        if is_broken(request):
            return
        send_frame(request, ABNF.OPCODE_BINARY, bytes([ERROR]) + json.dumps(exit_status(code)).encode())
        send_frame(request, ABNF.OPCODE_CLOSE, struct.pack(">H", STATUS_NORMAL))
    except OSError:  # the client has disconnected
        pass
    finally:
        request.close_connection = True
        with contextlib.suppress(OSError):
            request.connection.shutdown(socket.SHUT_RDWR)  # ends pass_input()


def is_broken(request: Any) -> bool:
    """Return whether the connection ends without the exit code, and count this `exec`."""
    with request.api.changed:
        remaining = request.api.state.break_execs
        request.api.state.break_execs = max(0, remaining - 1)
    return bool(remaining)


def run_command(request: Any, command: list[str], *, stdin: bool) -> int:
    """Run a command, send its output in the same pieces as Kubernetes, and return its exit code."""
    source = subprocess.PIPE if stdin else subprocess.DEVNULL
    with subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        if process.stdin:
            threading.Thread(target=pass_input, args=(request, process.stdin), daemon=True).start()
        channels = {process.stdout.fileno(): STDOUT, process.stderr.fileno(): STDERR}
        try:
            while channels:
                for file in select.select(list(channels), [], [])[0]:
                    data = os.read(file, MAX_DATA)
                    if data:
                        send_frame(request, ABNF.OPCODE_BINARY, bytes([channels[file]]) + data)
                    else:
                        del channels[file]
        finally:
            process.kill()
    return process.returncode


def pass_input(request: Any, stdin: IO[bytes]) -> None:
    """Pass the frames of standard input on to a command, until the client disconnects."""

    def receive(size: int) -> bytes:
        if data := request.rfile.read1(size):
            return bytes(data)
        raise ConnectionError("the client has disconnected")

    frames = frame_buffer(receive, skip_utf8_validation=True)
    with contextlib.suppress(OSError, WebSocketException):
        while (frame := frames.recv_frame()).opcode != ABNF.OPCODE_CLOSE:
            if frame.data[0] == STDIN:
                stdin.write(frame.data[1:])
                stdin.flush()
    with contextlib.suppress(OSError):
        stdin.close()


def exit_status(code: int) -> dict[str, Any]:
    """Return the Status with which Kubernetes reports an exit code."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    status = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode"}
    return {**status, "message": f"command terminated with exit code {code}", "details": {"causes": causes}}


def send_frame(request: Any, opcode: int, data: bytes) -> None:
    """Send a frame of a websocket."""
    request.wfile.write(ABNF(fin=1, opcode=opcode, mask_value=0, data=data).format())
    request.wfile.flush()
