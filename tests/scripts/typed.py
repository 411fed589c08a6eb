"""Use orch as mypy --strict accepts it; `make lint` checks this file and nobody runs it."""

from __future__ import annotations

import orch

run = orch.train("train.py", inventory="lab", nodes=4, args=["--epochs", "3"], max_restarts=2)
state: str = run.wait().state
first: float = next(run.events()).time
orch.train("train.py", nonsense=3)  # type: ignore[call-arg]  # if mypy accepted it, this comment would be reported
