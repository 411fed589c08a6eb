"""The script that every rank of `orch.submit` runs: it calls the function and gathers the results.

It is copied to the nodes together with the file `call.pickle` and the package cloudpickle.
"""

from __future__ import annotations

import json
import pickle  # its data comes from the user, and goes to nodes only
import sys
from pathlib import Path

from orch_training import ranks


def main() -> None:
    """Call the function and let rank 0 write the results of all ranks.

    Raises:
        SystemExit: if Python is of another version than where the function was pickled.
        TypeError: if the result cannot be represented in JSON.
    """
    version, call = pickle.loads(Path(__file__).with_name("call.pickle").read_bytes())  # noqa: S301  the user sent it
    if version != sys.version_info[:2]:
        sys.exit(
            f"The function was pickled by Python {version[0]}.{version[1]}, and the ranks have Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}. Use the same version, or a script with orch.train."
        )
    function, args, kwargs = pickle.loads(call)  # noqa: S301  the user sent it
    results = Path("results.json").absolute()  # the function may change the working directory
    result = function(*args, **kwargs)
    try:
        text = json.dumps(describe(result))
    except (TypeError, ValueError) as error:
        message = "A function returns numbers, text, lists, tuples and dicts; write anything else to a file."
        raise TypeError(f"The result of rank {ranks.rank()} cannot be sent as JSON: {error}. {message}") from None
    ranks.join()  # the function may have destroyed the group
    texts = ranks.gather(text)
    if ranks.is_main():
        results.write_text(json.dumps(texts))


def describe(value: object) -> object:
    """Return a value in JSON, which has neither tuples nor dicts with keys other than text.

    Raises:
        TypeError: if it has no representation.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return {"tuple": [describe(item) for item in value]}
    if isinstance(value, list):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[describe(key), describe(item)] for key, item in value.items()]}
    raise TypeError(f"it contains a {type(value).__name__}")


if __name__ == "__main__":
    main()
