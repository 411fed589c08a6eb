"""The backend and the ranks per node follow what was measured on the nodes."""

from __future__ import annotations

from dataclasses import replace

from orch_node.protocol import values

from orchestrator.model.cluster import Node
from orchestrator.model.measurement import Measurement, NodeRates, RunRates
from orchestrator.planning.measured import Preference, prefer, valid_for
from orchestrator.planning.resolve import Inputs, resolve
from orchestrator.stacks.stack import Stack
from tests.conftest import make_facts, make_node
from tests.support.plans import BINDINGS, QA_RECIPE, QA_REQUEST, known_nodes
from tests.unit.model.test_slowness import RATES
from tests.unit.planning.test_resolve import START


def make_run(backend: str, ppn: int, samples: float) -> RunRates:
    fields = {"run": "r", "fabric": "", "precision": "bf16", "threads": 16 // ppn, "reductions": {}}
    return RunRates(backend=backend, ppn=ppn, samples=samples, **fields)


def measured(*runs: RunRates) -> Measurement:
    """Return a measurement of the node `node0`."""
    node = NodeRates(node="node0", cores=16, rates=RATES)
    return Measurement(date="2026-11-26", stack="current", fingerprint="", nodes=(node,), runs=runs)


MEASURED = measured(make_run("gloo", 1, 12.1), make_run("ccl", 4, 16.3), make_run("gloo", 4, 17.6))


def measured_node(name: str = "node0", *, cores: int = 16, **changed: object) -> Node:
    """Return a node with the CPUs that were measured, except for what is changed."""
    return make_node(name, replace(make_facts(cores=cores, flags=RATES.flags), **changed))


def prefer_of(measurement: Measurement, **fields: object) -> Preference:
    request = replace(QA_REQUEST, **fields)
    return prefer(request, measurement, backends=("ccl", "gloo"), ppn=request.ppn or 1)


def test_fastest_backend_and_ranks_are_preferred_with_the_ratio_and_the_date() -> None:
    assert prefer_of(MEASURED) == Preference(
        backend="gloo",
        backend_reason="gloo: 1.08 times as fast as ccl here with 4 ranks of 4 cores, measured 2026-11-26",
        ppn=4,
        ppn_reason="1.45 times as fast as 1 rank of 16 cores here, measured 2026-11-26; --ppn 1 keeps those",
    )
    result = prefer_of(MEASURED, backend="ccl")
    assert (result.backend, result.ppn) == (None, 4), "the ranks follow"


def test_rule_stays_without_a_worthwhile_advantage_and_with_the_measured_ratio() -> None:
    result = prefer_of(measured(make_run("ccl", 2, 12.0), make_run("gloo", 2, 12.1)), ppn=2)
    assert (result.backend, result.ppn) == ("ccl", None)
    assert result.backend_reason.startswith("ccl: 0.99 times as fast as gloo here with 2 ranks of 8 cores")
    assert prefer_of(measured(make_run("gloo", 1, 12.1))) == Preference(), "one rank uses no backend"


def test_measurement_of_something_else_is_not_followed() -> None:
    for fields in (
        {"stack": "intel-2.8"},
        {"launcher": "torchrun"},
        {"python": "/p"},
        {"recipe": "bench"},
        {"fabric": "psm3"},
        {"precision": "fp32"},
        {"ipex": True},
    ):
        assert prefer_of(MEASURED, **fields) == Preference()


def test_measurement_is_valid_for_its_nodes_with_their_packages_and_cpus_only() -> None:
    node = measured_node()
    assert valid_for(MEASURED, [node], by_name=True) is MEASURED
    assert valid_for(MEASURED, [measured_node(cores=17)], by_name=True) is MEASURED, "one core had no rank"
    assert valid_for(MEASURED, [make_node("other")], by_name=False) is MEASURED
    for changed in (
        measured_node("other"),
        measured_node(cores=2),  # fewer than the ranks that were fastest
        measured_node(cores=64),
        measured_node(flags=frozenset({"avx2"})),
        measured_node(fingerprint="1" * 64),
    ):
        assert valid_for(MEASURED, [changed], by_name=True) is None, changed
    assert valid_for(MEASURED, [node, make_node("node1")], by_name=False) is None, "several nodes communicate"


def test_plan_follows_the_measurement(test_stack: Stack) -> None:
    stack = replace(test_stack, backends=("ccl", "gloo"), bindings=BINDINGS)
    nodes = replace(known_nodes((measured_node(),)), measurement=MEASURED)
    result = resolve(QA_REQUEST, Inputs(recipe=QA_RECIPE, stack=stack), nodes, **START)
    assert result.backend.value.name == "gloo"
    assert result.layout.value.world_size == 4
    (backend,), (ranks,) = result.backend.decisions, result.layout.decisions
    assert backend.reason.startswith("gloo: 1.08 times as fast as ccl here")
    assert ranks.reason.startswith("4 on each node, 1.45 times as fast as 1 rank of 16 cores")


def test_measurement_is_stored_without_loss() -> None:
    assert values.read(Measurement, values.record(MEASURED), "a measurement") == MEASURED
