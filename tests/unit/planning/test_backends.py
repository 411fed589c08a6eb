from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from orchestrator.errors import PlanError, RequestError
from orchestrator.load.definitions import load_entry_point
from orchestrator.model.process_group import BACKENDS, Backend
from orchestrator.planning.software import adapt_backend, choose_backend
from orchestrator.stacks.stack import Stack
from tests.conftest import make_facts, make_node
from tests.support.plans import BINDINGS

NODES = (make_node(),)
PLUGIN = {
    "name": "toy",
    "summary": "a test's",
    "module": "toy_backend",
    "env": {"TOY_MODE": "1"},
    "requirements": {"toy-backend": "1.0"},
}


def refused(stack: Stack, name: str, **plugins: Backend) -> PlanError:
    with pytest.raises(PlanError) as caught:
        choose_backend(stack, NODES, name, plugins)
    return caught.value


def test_missing_requirement_of_a_backend_is_named(test_stack: Stack) -> None:
    assert "node0 has no GPU." in refused(test_stack, "nccl").message
    assert "was built without mpi" in refused(test_stack, "mpi").message
    assert "'current' has gloo" in refused(test_stack, "ccl").message
    assert refused(test_stack, "glo").hint.startswith("Did you mean 'gloo'? Packages add backends by the entry point")


def test_plugin_of_an_entry_point_or_of_the_stack(test_stack: Stack) -> None:
    entry = EntryPoint("toy", "tests.unit.planning.test_backends:PLUGIN", "orch.backends")
    toy = load_entry_point(entry)
    assert (toy.module, toy.env) == ("toy_backend", {"TOY_MODE": "1"})
    missing = refused(test_stack, "toy", toy=toy)
    assert "node0 has no toy-backend" in missing.message
    assert "entry point toy = tests.unit.planning.test_backends:PLUGIN" in missing.hint
    facts = replace(make_facts(), packages={**make_facts().packages, "toy-backend": "1.0"})
    nodes = (make_node(facts=facts),)
    assert choose_backend(test_stack, nodes, "toy", {"toy": toy}) == toy
    of_stack = replace(test_stack, plugins=(replace(toy, requirements={}),))
    assert choose_backend(of_stack, NODES, "toy", {"toy": toy}).requirements == {}


def test_broken_plugin_and_unknown_key_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLUGIN, "modul", "toy_backend")
    for value, message in (
        ("tests.nothing:PLUGIN", r"plug-in toy \(tests"),
        (f"{__name__}:NODES", r"plug-in toy \(tests"),
        (f"{__name__}:PLUGIN", "modul"),
    ):
        with pytest.raises(RequestError, match=message):
            load_entry_point(EntryPoint("toy", value, "orch.backends"))


def test_oneccl_talks_over_mpi_only_below_hydra(test_stack: Stack) -> None:
    stack = replace(test_stack, backends=("ccl", "gloo"), bindings=BINDINGS)
    ccl = choose_backend(stack, NODES, None, {})

    def transport(launcher: str, mpi: str) -> str:
        return adapt_backend(ccl, launcher, mpi).env["CCL_ATL_TRANSPORT"]

    assert [transport("mpirun", mpi) for mpi in ("intel", "mpich", "openmpi")] == ["mpi", "mpi", "ofi"]
    launchers = ("torchrun", "accelerate", "mpirun-accelerate")
    assert [transport(name, "intel") for name in launchers] == ["ofi", "mpi", "ofi"]
    assert adapt_backend(BACKENDS["gloo"], "torchrun", "intel") == BACKENDS["gloo"]
