"""Check the programs that a node's own Python runs: the facts of a node, and the sender of files."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from orch_node.standalone import facts
from orch_node.standalone.facts import packages

from orchestrator.files import LIB, STANDALONE
from orchestrator.load.records import validate
from orchestrator.model.facts import Facts, Gpu
from tests.support.environments import make_environment
from tests.support.files import write_files, write_program
from tests.support.node_responses import make_reported_facts


def test_metadata_of_wheels_conda_and_development_is_read(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    for name in ("Typing_Extensions-4.1.dist-info", "torch-2.8.0-py3.12.egg-info", "own.egg-info"):
        (site / name).mkdir(parents=True)
    assert packages(tmp_path) == {"torch": "2.8.0", "typing-extensions": "4.1"}


def test_packages_of_an_interpreter_are_those_that_it_imports(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "environment")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "einops-0.8.dist-info").mkdir(parents=True)
    (environment / "elsewhere.pth").write_text(f"{elsewhere}\n")
    program = (STANDALONE / "facts.py").read_text()
    python = str(tmp_path / "environment/bin/python")
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["packages"] == {"einops": "0.8"}


def test_programs_that_a_nodes_own_python_runs_need_python_3_8() -> None:
    """Find newer syntax, `|` of dictionaries, and types such as list[int] outside of annotations."""
    types, evaluated = {"dict", "frozenset", "list", "set", "tuple", "type"}, []
    for path in sorted(STANDALONE.glob("*.py")):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        fields = ((node, name, value) for node in ast.walk(tree) for name, value in ast.iter_fields(node))
        annotations = [value for _, name, value in fields if name in ("annotation", "returns") and value]
        ignored = {id(part) for annotation in annotations for part in ast.walk(annotation)}
        for node in ast.walk(tree):
            is_type = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in types
            is_union = (
                isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and isinstance(node.left, ast.Name)
            )
            if (is_type or is_union) and id(node) not in ignored:
                evaluated.append(f"{path.name}:{node.lineno}")
    assert evaluated == []


def test_ranks_and_nodes_need_python_3_9() -> None:
    """Find zip(strict=...), which needs Python 3.10; ruff finds newer syntax."""
    for path in (LIB / "orch_node").rglob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip"]
        assert not any(call.keywords for call in calls), path


# What nvidia-smi prints for two GPUs; a third one has an unknown size.
SMI = """\
0, GPU-5d6a, NVIDIA H100 80GB HBM3, 81559, 550.54.15, 00000000:1B:00.0
1, GPU-77b1, NVIDIA H100 80GB HBM3, 81559, 550.54.15, 00000000:43:00.0
2, GPU-9c02, NVIDIA GB10, [N/A], 580.1, 0000000F:01:00.0
"""


@pytest.fixture
def nvidia_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file system with three GPUs, of which the first one's NUMA node is known."""
    program = write_program(tmp_path / "bin/nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{SMI}END\n")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = {f"dev/nvidia{number}": "" for number in range(3)}
    return write_files(tmp_path, {**devices, "sys/bus/pci/devices/0000:1b:00.0/numa_node": "1\n"})


def test_gpus_are_those_of_nvidia_smi(nvidia_root: Path) -> None:
    first, second, third = facts.gpus(nvidia_root)
    assert (second["numa"], third["memory_bytes"]) == (None, 0)
    node = validate(Facts, make_reported_facts(gpus=[first]), "the facts")
    gpu = Gpu(
        index=0, name="NVIDIA H100 80GB HBM3", uuid="GPU-5d6a", memory_bytes=81559 << 20, driver="550.54.15", numa=1
    )
    assert node.gpus == (gpu,)


def test_variable_of_cuda_selects_gpus(nvidia_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, indexes in (
        ("1,0", [1, 0]),  # order
        ("GPU-77", [1]),
        ("", []),  # none
        ("0,7,1", [0]),  # unknown
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
        assert [gpu["index"] for gpu in facts.gpus(nvidia_root)] == indexes


def test_gpus_are_counted_where_nvidia_smi_fails(nvidia_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert [gpu["index"] for gpu in facts.gpus(nvidia_root)] == [0, 1, 2]


def test_gpus_of_amd_and_intel_are_counted_without_those_of_displays(tmp_path: Path) -> None:
    pci = {
        "0000:00:02.0": {"vendor": "0x8086", "class": "0x030000"},
        "0000:29:00.0": {"vendor": "0x8086", "class": "0x038000", "numa_node": "0"},
        "0000:c1:00.0": {"vendor": "0x1002", "class": "0x120000", "mem_info_vram_total": "206141652992"},
        "0000:c2:00.0": {"vendor": "0x1a03", "class": "0x030000"},
    }
    files = {f"sys/bus/pci/devices/{bus}/{name}": text for bus, texts in pci.items() for name, text in texts.items()}
    result = [(gpu["vendor"], gpu["memory_bytes"], gpu["numa"]) for gpu in facts.gpus(write_files(tmp_path, files))]
    assert result == [("intel", 0, 0), ("amd", 206141652992, None)]


def test_program_ends_without_sending_when_its_input_ends(tmp_path: Path) -> None:
    for request_line in ("", '["model.pt", 0, ""]\n'):
        (tmp_path / "model.pt").write_text("weights")
        command = [sys.executable, "-I", "-S", STANDALONE / "send_files.py"]
        text = json.dumps([[str(tmp_path)], "/copy", "/received.json"]) + "\n" + request_line
        process = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=True)
        assert "model.pt" in process.stdout
        assert "weights" not in process.stdout
