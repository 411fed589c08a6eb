"""Times of commands, as medians of several interleaved runs, and their ratios."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence


def interleaved(cases: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Each case `repeats` times, in turn, so that a noisy minute hits all of them."""
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, measure in cases.items():
            figures[name].append(measure())
    return figures


def seconds(command: Sequence[str], **options: object) -> float:
    """Wall time of a command that has to succeed."""
    began = time.perf_counter()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )
    return time.perf_counter() - began


def report(title: str, unit: str, figures: Mapping[str, list[float]], base: str) -> None:
    """A table of medians with their ratio to `base`; JSON with --json."""
    medians = {name: statistics.median(values) for name, values in figures.items()}
    if "--json" in sys.argv:
        print(
            json.dumps(
                {
                    "schema": 1,
                    "title": title,
                    "unit": unit,
                    "medians": medians,
                    "all": dict(figures),
                    "base": base,
                }
            )
        )
        return
    print(f"\n{title} ({unit}, median of {len(figures[base])})")
    for name, median in medians.items():
        spread = f"{min(figures[name]):.3f}..{max(figures[name]):.3f}"
        print(f"  {name:45} {median:9.3f}  {median / medians[base]:6.3f} x  {spread}")


def arguments(**more: int | bool) -> argparse.Namespace:
    """`more`: options of one measurement, with their defaults; False is a switch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    for name, default in more.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()
