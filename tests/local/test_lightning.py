"""Run scripts with Lightning's Trainer, which computes the number of each rank itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.local.runs import SCRIPTS
from tests.local.workspaces import Workspace
from tests.support.ports import free_port

SCRIPT = SCRIPTS / "with_lightning.py"


@pytest.fixture(scope="session")
def torchrun_output(lightning: str) -> dict[int, str]:
    """Return the output of each rank of torchrun with gloo, without orch."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    rendezvous = f"--master_port={free_port()}"
    process = subprocess.run(
        [*torchrun, rendezvous, str(SCRIPT), "2", "1", lightning],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert process.returncode == 0, process.stderr
    return {int(rank): text for rank, text in re.findall(r"RANK(\d) (rank .*)", process.stdout)}


def test_lightning_on_two_nodes_trains_like_with_torchrun_and_sets_the_timeout_of_its_strategy(
    two_hosts: Workspace, lightning: str, torchrun_output: dict[int, str]
) -> None:
    text = SCRIPT.read_text()
    assert 'strategy="ddp",' in text
    strategy = "lightning.pytorch.strategies.DDPStrategy(timeout=timedelta(seconds=5000))"
    text = text.replace('strategy="ddp",', f"strategy={strategy},")
    cell = two_hosts.train_text(
        f"from datetime import timedelta\n{text}"
        "options = torch.distributed.group.WORLD._get_backend(torch.device('cpu')).options\n"
        "print('TIMEOUT', options._timeout)\n",
        *("--backend", "gloo", "--", "1", "2", lightning),
    )
    assert {rank: cell.printed(f"RANK{rank}", rank) for rank in (0, 1)} == torchrun_output
    assert torchrun_output[0] != torchrun_output[1]
    assert cell.printed("TIMEOUT", 1) == "1:23:20"
