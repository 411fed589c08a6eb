"""The c10d backend `ccl` over oneCCL.

torch finds it by an entry point and loads it for the first group that uses it. Importing this module
loads it at once:

>>> torch.distributed.init_process_group("ccl")
"""

from __future__ import annotations

import atexit
import os

from . import _check

_check.check_torch()

import torch.distributed as dist  # noqa: E402

try:
    from . import _ccl
except ImportError as error:
    raise _check.add_hint(error) from error

from ._built import ONECCL as oneccl_version  # noqa: E402
from ._built import VERSION as __version__  # noqa: E402
from ._environment import defaults  # noqa: E402
from .hooks import bf16_compress_hook  # noqa: E402

__all__ = ["__version__", "bf16_compress_hook", "cwd", "expect_settings", "oneccl_version"]

# The folder of env/setvars.sh, as in Intel's package.
cwd = os.path.dirname(os.path.abspath(__file__))


def expect_settings(settings):
    """Suppress oneCCL's warnings about variables that a launcher has set on purpose.

    Call it before the first group is created.

    Args:
        settings: environment variables and their values.
    """
    _ccl.expect_settings(dict(settings))


def _create(options, _backend_options=None):
    """Create a process group. torch calls it on all ranks of the group."""
    added = defaults(os.environ)
    os.environ.update(added)
    expect_settings(added)
    return _ccl.create(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        list(options.global_ranks_in_group),
    )


def _register() -> None:
    dist.Backend.register_backend("ccl", _create, extended_api=True, devices=["cpu"])
    dist.ProcessGroupCCL = _ccl.ProcessGroupCCL  # like torch.distributed.ProcessGroupGloo
    atexit.register(_ccl.before_interpreter_ends)


_register()
