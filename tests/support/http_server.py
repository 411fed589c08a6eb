"""HTTP servers on this machine."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serve(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server with this handler, and yield its URL without a path."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def serve_folder(folder: Path, handler: type[QuietHandler] = QuietHandler) -> contextlib.AbstractContextManager[str]:
    """Serve the files of a folder, and yield the URL of the folder."""
    return serve(functools.partial(handler, directory=str(folder)))
