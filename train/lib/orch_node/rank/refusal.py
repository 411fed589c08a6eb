"""How a rank's wrapper ends where it cannot start the rank."""

from __future__ import annotations

import sys
from typing import NoReturn

from orch_node.events import send
from orch_node.protocol.events import Raised


def fail(text: str, code: int = 1) -> NoReturn:
    send(Raised(text=text))
    print(f"error: {text}", file=sys.stderr, flush=True)
    raise SystemExit(code)
