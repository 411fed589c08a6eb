"""What makes two requests the same training."""

from __future__ import annotations

import hashlib
import json

from orchestrator.planning.request import TrainRequest
from orchestrator.planning.training import Training


def request_key(request: TrainRequest, training: Training, *, hosts: tuple[str, ...], names: tuple[str, ...]) -> str:
    """Return a key that is equal for requests that ask for the same training.

    It is the first 12 digits of a SHA-256. The precision is not part of it: a run can be resumed
    in another one. `names` are whatever else distinguishes runs of a recipe on this target.
    """
    asked = [request.inventory, hosts, request.ppn, request.ipex, request.script_args]
    decided = (training.stack.name, training.backend.name, *names)
    value = [training.recipe.script, sorted(training.settings.items()), asked, decided]
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
