"""Process-group backends as data: a name, the module that registers it, what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.stack import Bindings, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A torch.distributed backend. `module` is imported by each rank before the group is made.

    `workers`: whether it can set cores apart for communication. `setvars`: the script below
    site-packages that its libraries want to be sourced, if they do.
    """

    name: str
    summary: str
    module: str = ""
    env: tuple[tuple[str, str], ...] = ()
    workers: bool = False
    setvars: str = ""


GLOO = Backend(name="gloo", summary="part of PyTorch, over TCP")
CCL = Backend(
    name="ccl",
    summary="oneCCL over Intel MPI",
    env=(
        ("CCL_ATL_TRANSPORT", "mpi"),
        # oneCCL's own worker would spin on the core that computes: on unpinned ranks small
        # messages take 2 to 4 times as long as on gloo. Ranks with cores set apart turn it on.
        ("CCL_WORKER_OFFLOAD", "0"),
        ("CCL_WORKER_COUNT", "1"),  # accelerate up to 1.12 takes less for "no ccl here"
    ),
    workers=True,
)


def backend_of(stack: Stack) -> Backend:
    """The backend that a stack, narrowed by `for_backend`, runs on."""
    if stack.backends[0] == "ccl" and stack.bindings:
        return Backend(
            name=CCL.name,
            summary=f"{CCL.summary}, {stack.bindings.module} {stack.bindings.version}",
            module=stack.bindings.module,
            env=CCL.env,
            workers=True,
            setvars=setvars_of(stack.bindings),
        )
    return GLOO


def setvars_of(bindings: Bindings) -> str:
    """Intel's wheels need theirs; ours find their libraries by themselves."""
    return f"{bindings.module}/{bindings.setvars}" if bindings.built_by == "Intel" else ""
