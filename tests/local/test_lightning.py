"""A script with Lightning's Trainer, which works out each rank's number by itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.launchers import LAUNCHERS
from tests.local.grounds import Ground
from tests.ports import free_port

SCRIPT = Path(__file__).parents[1] / "scripts" / "with_lightning.py"
WHEELS = ("lightning==2.6.6", "torchmetrics==1.9.0", "lightning-utilities==0.15.3")
ALL = "ORCH_MATRIX_ALL" in os.environ
STARTERS = tuple(LAUNCHERS) if ALL else ("mpirun", "accelerate", "mpirun-accelerate")


@pytest.fixture(scope="session")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder to import Lightning from; the stack gets no package."""
    folder = tmp_path_factory.mktemp("lightning")
    options = ["--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, *WHEELS], check=True)
    for path in folder.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder)
    return str(folder)


@pytest.fixture(scope="session")
def below_torchrun(lightning: str) -> dict[int, str]:
    """Return what each rank prints when torchrun starts it with gloo, without orch."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    meeting = f"--master_port={free_port()}"
    done = subprocess.run(
        [*torchrun, meeting, str(SCRIPT), "2", "1", lightning],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return {int(rank): text for rank, text in re.findall(r"RANK(\d) (rank .*)", done.stdout)}


@pytest.mark.parametrize("launcher", STARTERS)
def test_lightning_on_two_nodes_trains_as_below_torchrun(
    two: Ground, lightning: str, below_torchrun: dict[int, str], launcher: str
) -> None:
    cell = two.start(str(SCRIPT), "--launcher", launcher, "--", "1", "2", lightning)
    assert cell.code == 0, cell.report
    assert {rank: cell.printed(f"RANK{rank}", rank) for rank in (0, 1)} == below_torchrun
    assert below_torchrun[0] != below_torchrun[1]


def test_lightning_with_too_few_devices_ends_before_its_first_step(one: Ground, lightning: str) -> None:
    cell = one.start(str(SCRIPT), "--", "1", "1", lightning)
    assert cell.code == 1
    assert "devices=1" in cell.report["failure"]["text"]


def test_the_timeout_of_a_strategy_applies_to_the_group(one: Ground, tmp_path: Path, lightning: str) -> None:
    text = SCRIPT.read_text()
    assert 'strategy="ddp",' in text
    strategy = "lightning.pytorch.strategies.DDPStrategy(timeout=timedelta(seconds=5000))"
    text = text.replace('strategy="ddp",', f"strategy={strategy},")
    script = tmp_path / "own.py"
    script.write_text(
        f"from datetime import timedelta\n{text}"
        "options = torch.distributed.group.WORLD._get_backend(torch.device('cpu')).options\n"
        "print('TIMEOUT', options._timeout)\n"
    )
    cell = one.start(str(script), "--backend", "gloo", "--", "2", "1", lightning)
    assert cell.code == 0, cell.report
    assert cell.printed("TIMEOUT", 1) == "1:23:20"
