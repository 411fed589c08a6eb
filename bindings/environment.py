"""The build backend: setuptools', with the torch of the environment that pip installs into.

pip builds in an environment of its own. Asked to put torch there it would fetch a default one, of
several GB, that the wheel then does not fit. So what is installed comes last on the path there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from setuptools.build_meta import (  # noqa: F401
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)


def installed() -> list[str]:
    """What this Python has on its path when pip does not shield it, by PYTHONPATH."""
    shielded = ("PYTHONPATH", "PYTHONNOUSERSITE")
    own = {name: value for name, value in os.environ.items() if name not in shielded}
    asked = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    found: list[str] = json.loads(subprocess.check_output(asked, env=own, text=True))
    return found


sys.path += [path for path in installed() if path not in sys.path]
