from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.standalone import facts

from orchestrator.errors import RequestError
from orchestrator.load.clusters import mpi_implementations
from orchestrator.stacks.stack import Stack
from tests.support.files import write_program


def test_all_hosts_need_the_same_mpi_implementations(test_stack: Stack) -> None:
    assert mpi_implementations({"a": {}, "b": {}}) == ()
    assert mpi_implementations({"a": {"orch_mpi": "mpich"}}) == ("mpich",)
    implementations = mpi_implementations({"a": {"orch_mpi": ["openmpi", "intel"]}})
    assert implementations == ("openmpi", "intel")
    assert test_stack.with_mpi(implementations).requirements == {"torch": "2.13.0", "openmpi": "5.0.11"}
    with pytest.raises(RequestError, match=r"differs .*a: mpich, b: none"):
        mpi_implementations({"a": {"orch_mpi": "mpich"}, "b": {}})
    with pytest.raises(RequestError, match="unknown orch_mpi 'mpic'") as caught:
        mpi_implementations({"a": {"orch_mpi": "mpic"}})
    assert "mpich" in caught.value.hint


def test_launcher_is_found_in_the_environment_or_in_the_folder_of_its_implementation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = (tmp_path / "bin/mpiexec.hydra", tmp_path / "mpi/mpich/bin/mpiexec.hydra")
    intel, mpich = (str(write_program(path, "")) for path in paths)
    result = facts.launchers(tmp_path, {"impi-rt": "1", "mpich": "5"})
    assert result == {"intel": intel, "mpich": mpich}
    assert facts.launchers(tmp_path, {}) == {"mpich": mpich}
    assert facts.launchers(tmp_path / "mpi/mpich", {"mpich": "5"}) == {"mpich": mpich}
