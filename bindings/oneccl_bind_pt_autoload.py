"""Register the backend `ccl` when torch is imported: torch calls the entry point `register`.

The backend itself is loaded by the first group that uses it. Programs without `ccl` are not slowed
down, and torch can be imported even if the bindings were built for another release of it.
"""

from __future__ import annotations


def register() -> None:
    """Add `ccl` to the backends of torch.distributed."""
    import torch.distributed as dist

    if dist.is_available() and "ccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("ccl", create, extended_api=True, devices=["cpu"])


def create(options, backend_options=None):
    """Create a process group.

    Raises:
        ImportError: if `oneccl_bindings_for_pytorch` cannot be loaded; the message says why.
    """
    import oneccl_bindings_for_pytorch

    return oneccl_bindings_for_pytorch._create(options, backend_options)
