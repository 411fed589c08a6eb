"""Run ssh for Ansible through a login shell of any kind, without what the shell prints before the command's output.

Ansible takes what is printed before a module's result for the result if it begins like JSON.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "train/lib"))

from orch_node.reach import StartFilter, shell_command

WITH_ARGUMENT = "BbcDEeFIiJLlmOopQRSWw"  # the options of ssh(1) that take one
CHUNK = 1 << 16
MAX_ERROR_BYTES = 1 << 16  # of ssh's own messages that wait for the end


def main(argv: Sequence[str]) -> int:
    """Run ssh with these arguments, and return its exit code."""
    host = host_position(argv)
    command = argv[host + 1 :]
    if not command or is_terminal_requested(argv[:host]):
        os.execvp("ssh", ["ssh", *argv])
    remote = shell_command(("/bin/sh", "-c", " ".join(command)))
    process = subprocess.Popen(
        ["ssh", *argv[: host + 1], remote], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: process.send_signal(received))
    relay(process)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def host_position(argv: Sequence[str]) -> int:
    """Return the index of the host among the arguments of ssh, or their number if there is none."""
    position = 0
    while position < len(argv) and argv[position].startswith("-"):
        if argv[position] == "--":
            return position + 1
        letters = argv[position][1:]
        takes_next = next((i for i, letter in enumerate(letters) if letter in WITH_ARGUMENT), None) == len(letters) - 1
        position += 2 if letters and takes_next else 1
    return position


def is_terminal_requested(options: Sequence[str]) -> bool:
    """Return whether the program gets a terminal, which joins both outputs and changes line breaks."""
    return any(option in ("-t", "-tt") for option in options)


def relay(process: subprocess.Popen[bytes]) -> None:
    """Pass on what the remote program prints; if it was not started, what ssh and the login shell have printed.

    The end of standard output is the end: a shared connection in the background keeps standard error open.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    filters = {process.stdout: (StartFilter(), 1), process.stderr: (StartFilter(), 2)}
    errors = bytearray()

    def pass_on(stream: Any) -> bool:
        part = stream.read(CHUNK)
        start, descriptor = filters[stream]
        if descriptor == 2 and not start.started:
            errors.extend((part or b"")[: MAX_ERROR_BYTES - len(errors)])
        write(descriptor, start.output(part or b""))
        return bool(part)

    with DefaultSelector() as selector:
        for stream in filters:
            selector.register(stream, EVENT_READ)
        while process.stdout in (streams := selector.get_map()):
            for key, _ in selector.select():
                if not pass_on(key.fileobj):
                    selector.unregister(key.fileobj)
        has_errors = process.stderr in streams
    process.wait()
    os.set_blocking(process.stderr.fileno(), False)
    while has_errors and pass_on(process.stderr):
        pass
    if not filters[process.stdout][0].started:
        write(2, f"{filters[process.stdout][0].dropped}\n".encode().lstrip() + bytes(errors))


def write(descriptor: int, content: bytes) -> None:
    """Write all bytes to a pipe."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
