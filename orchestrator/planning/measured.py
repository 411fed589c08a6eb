"""Choose the backend and the ranks per node by what `orch bench` has measured on these nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from orch_node.protocol.layout import AUTO

from orchestrator.model.cluster import Node
from orchestrator.model.measurement import Measurement, NodeRates, RunRates
from orchestrator.planning.request import TrainRequest

BENCH_RECIPE = "bench"
WORTHWHILE = 1.05  # a smaller advantage is within the noise of a short measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The backend and the ranks per node that were faster, with the reason of each; None or '' to keep the rule's."""

    backend: str | None = None
    backend_reason: str = ""
    ppn: int | None = None
    ppn_reason: str = ""


def prefer(request: TrainRequest, measurement: Measurement, backends: Collection[str], ppn: int) -> Preference:
    """Return what a measurement says about what the request leaves open.

    Args:
        request: the request.
        measurement: of the nodes of the run.
        backends: the backends of the stack, its default first.
        ppn: the ranks per node of the request, or by the rule.
    """
    default = request.backend or next(iter(backends))
    if not may_follow(request, measurement):
        return Preference()
    # All runs of a sweep have as many ranks, whichever nodes they get.
    keeps_ppn = request.ppn or request.wait_for_cores
    runs = [
        run
        for run in measurement.runs
        if run.fabric == (request.fabric or "")
        and request.precision in (AUTO, run.precision)
        and run.backend in backends
        and (request.backend in (None, run.backend) or is_alone(run, measurement))
        and (run.ppn == ppn or not keeps_ppn)
    ]
    rules = [run for run in runs if run.ppn == ppn and (run.backend == default or is_alone(run, measurement))]
    if not rules or not rules[0].samples or request.backend not in (None, *(run.backend for run in runs)):
        return Preference()
    best = max(runs, key=lambda run: run.samples)
    if best.samples < WORTHWHILE * rules[0].samples:
        best = rules[0]
    measured, preference = f"measured {measurement.date}", Preference()
    if request.backend is None and not is_alone(best, measurement):
        reason = backend_reason(best, runs, measured)
        preference = replace(preference, backend=best.backend, backend_reason=reason)
    if best.ppn != ppn:
        preference = replace(preference, ppn=best.ppn, ppn_reason=ppn_reason(best, rules[0], measured))
    return preference


def is_alone(run: RunRates, measurement: Measurement) -> bool:
    """Return whether a run had a single rank, which uses no backend."""
    return run.ppn == 1 and len(measurement.nodes) == 1


def may_follow(request: TrainRequest, measurement: Measurement) -> bool:
    """Return whether a request uses the software and the cores that were measured."""
    is_bench = request.recipe == BENCH_RECIPE and not request.module
    starts_otherwise = request.launcher or request.mpi or request.accelerate_config
    changes_ranks = request.image or request.python or request.ccl_workers or request.ipex
    return not (is_bench or starts_otherwise or changes_ranks) and request.stack == measurement.stack


def valid_for(measurement: Measurement, nodes: Collection[Node], *, by_name: bool) -> Measurement | None:
    """Return a measurement if the nodes of a run have the packages and CPUs that were measured.

    What was measured on several nodes is not valid for one alone, and the reverse.

    Args:
        measurement: the measurement.
        nodes: the nodes of the run.
        by_name: whether the nodes and their CPUs are known, not only their packages.
    """
    if (len(nodes) == 1) != (len(measurement.nodes) == 1):
        return None
    rates = {rates.node: rates for rates in measurement.nodes}
    fits = all(
        node.facts.fingerprint == measurement.fingerprint and (not by_name or is_same(node, rates.get(node.name)))
        for node in nodes
    )
    return measurement if fits else None


def is_same(node: Node, rates: NodeRates | None) -> bool:
    """Return whether a node was measured with the CPUs that it has; less than half of its cores had no rank."""
    if rates is None:
        return False
    return rates.cores <= len(node.facts.cores) < 2 * rates.cores and node.facts.flags == {*rates.rates.flags}


def backend_reason(best: RunRates, runs: Collection[RunRates], measured: str) -> str:
    """Return how much faster a backend was than the next one with the same ranks; empty if there is no rival."""
    rivals = [run for run in runs if run.ppn == best.ppn and run.backend != best.backend and run.samples]
    if not rivals:
        return ""
    rival = max(rivals, key=lambda run: run.samples)
    ratio = best.samples / rival.samples
    return f"{best.backend}: {ratio:.2f} times as fast as {rival.backend} here with {best.ranks}, {measured}"


def ppn_reason(best: RunRates, rule: RunRates, measured: str) -> str:
    """Return how much faster this number of ranks was than that of the rule."""
    ratio = best.samples / rule.samples
    return f"{ratio:.2f} times as fast as {rule.ranks} here, {measured}; --ppn {rule.ppn} keeps those"
