"""What makes two requests the same training."""

from __future__ import annotations

import hashlib
import json

from orchestrator.planning.request import TrainRequest
from orchestrator.planning.training import Training


def request_key(
    request: TrainRequest, training: Training, *, hosts: tuple[str, ...], names: tuple[str, ...]
) -> str:
    """Equal for requests that ask for the same training: SHA-256, the first 12 digits.

    `names`: what else tells two runs of one recipe apart on this target.
    """
    asked = [request.inventory, hosts, request.ppn, request.ipex, request.script_args]
    decided = (training.stack.name, training.backend.name, training.precision, *names)
    value = [training.recipe.script, sorted(training.settings.items()), asked, decided]
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
