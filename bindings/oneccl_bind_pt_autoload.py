"""Makes `ccl` known to torch as soon as that is imported: torch calls `register`, an entry point.

The backend itself is loaded by the first group that asks for it, so that who uses another one pays
nothing, and an environment whose torch it does not fit can still import torch.
"""

from __future__ import annotations


def register() -> None:
    import torch.distributed as dist

    if dist.is_available() and "ccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("ccl", create, extended_api=True, devices=["cpu"])


def create(options, backend_options=None):
    """Raises ImportError, with its words, where `oneccl_bindings_for_pytorch` cannot be loaded."""
    import oneccl_bindings_for_pytorch

    return oneccl_bindings_for_pytorch._create(options, backend_options)
