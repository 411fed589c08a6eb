"""Compare messages and all_to_all of ccl with gloo and with broadcasts, which have no envelope.

    python benchmarks/messages.py                 # two ranks on this host, one core each
    CCL_ALLTOALLV=direct python benchmarks/messages.py    # with MPI's algorithm

Medians of alternating turns in the same processes. A ratio below 1 means that ccl is faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from collectives import KB, MB, pin_to_one_core, start_groups, start_ranks, time_turns
from measure import describe_machine

SIZES = (8, 64 * KB, MB)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=15, help="samples of each measurement")
    parser.add_argument("--inside", action="store_true", help="this process is already a rank")
    return parser.parse_args()


def there_and_back(rank: int, size: int) -> tuple[Callable, Callable]:
    """Return a ping-pong with send and recv, and one with broadcasts, which are plain messages between two ranks."""

    data = torch.zeros(size // 4)

    def messages(group: dist.ProcessGroup) -> None:
        for source in (0, 1):
            if rank == source:
                dist.send(data, 1 - rank, group=group)
            else:
                dist.recv(data, 1 - rank, group=group)

    def broadcasts(group: dist.ProcessGroup) -> None:
        for source in (0, 1):
            dist.broadcast(data, source, group=group)

    return messages, broadcasts


def all_to_all(size: int) -> Callable:

    source, target = torch.zeros(size // 4), torch.zeros(size // 4)
    return lambda group: dist.all_to_all_single(target, source, group=group)


def medians(work: Callable, groups: dict, repeat: int, size: int) -> dict[str, float]:
    inner = 20 if size <= 64 * KB else 5
    cases = {name: partial(work, group) for name, group in groups.items()}
    return {name: statistics.median(times) for name, times in time_turns(cases, repeat, inner).items()}


def main() -> int:
    options = arguments()
    if not options.inside:
        return start_ranks(2)
    machine = describe_machine()
    pin_to_one_core()
    rank, _, groups = start_groups()

    if rank == 0:
        print(f"{machine}; medians of {options.repeat}")
        print(f"{'bytes':>9}{'ping-pong us':>13}   /gloo /broadcast all_to_all us   /gloo")
    for size in SIZES:
        messages, broadcasts = there_and_back(rank, size)
        sent = medians(messages, groups, options.repeat, size)
        bare = medians(broadcasts, groups, options.repeat, size)
        exchanged = medians(all_to_all(size), groups, options.repeat, size)
        if rank == 0:
            print(
                f"{size:>9}{sent['ccl'] * 1e6:13.1f}{sent['ccl'] / sent['gloo']:8.2f}"
                f"{sent['ccl'] / bare['ccl']:11.2f}{exchanged['ccl'] * 1e6:14.1f}"
                f"{exchanged['ccl'] / exchanged['gloo']:8.2f}",
                flush=True,
            )
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
