"""The script that every rank of `orch.submit` runs: it calls the function and gathers the results.

It is copied to the nodes together with the file `call.pickle` and the package cloudpickle.
"""

from __future__ import annotations

import json
import pickle  # nosec B403: its data comes from the user, and goes to nodes only
import sys
from pathlib import Path

import torch.distributed as dist


def main() -> None:
    """Call the function and let rank 0 write the results of all ranks.

    Raises:
        SystemExit: if Python is of another version than where the function was pickled.
        TypeError: if the result cannot be represented in JSON.
    """
    version, call = pickle.loads(Path(__file__).with_name("call.pickle").read_bytes())  # nosec B301: the user sent it
    if version != sys.version_info[:2]:
        sys.exit(
            f"The function was pickled by Python {version[0]}.{version[1]}, and the ranks have Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}. Use the same version, or a script with orch.train."
        )
    function, args, kwargs = pickle.loads(call)  # nosec B301: the user sent it
    result = function(*args, **kwargs)
    try:
        text = json.dumps(result)
    except (TypeError, ValueError) as error:
        message = "A function returns numbers, text, lists and dicts; write anything else to a file."
        raise TypeError(f"The result of rank {dist.get_rank()} cannot be sent as JSON: {error}. {message}") from None
    texts: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    if dist.get_rank() == 0:
        Path("results.json").write_text(json.dumps(texts))


if __name__ == "__main__":
    main()
