"""Check the folders that a plan sends to a login node, or expects on the nodes."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.protocol import slurm as protocol

from orchestrator.errors import OrchError, RequestError
from orchestrator.files import source_files
from orchestrator.paths import TRAIN
from orchestrator.planning.plan import SendFolder
from orchestrator.targets.connections.local import Local
from orchestrator.targets.execute import packed
from orchestrator.targets.slurm.load import slurm_settings
from orchestrator.targets.slurm.login import local_stack
from orchestrator.targets.slurm.plan import LOGIN, plan_run
from tests.support.slurm_plans import SITE, make_inputs, make_request


def test_sent_folder_is_complete_or_absent(tmp_path: Path) -> None:
    """Send the folder twice, the second time over the existing copy, and then a truncated one."""
    step = SendFolder(node=LOGIN, source=str(TRAIN), path=str(tmp_path / "a b" / "train"))
    for _ in range(2):
        subprocess.run(["bash", "-c", step.describe()], check=True)
    with packed(TRAIN, source_files(TRAIN)) as archive:
        Local().feed(step.unpack(), archive)
        (tmp_path / "truncated").write_bytes(archive.read_bytes()[:5000])
    assert (tmp_path / "a b" / "train" / "node.py").read_bytes() == (TRAIN / "node.py").read_bytes()
    assert sorted(os.listdir(tmp_path / "a b")) == [".train.lock", "train"]
    truncated_step = replace(step, path=str(tmp_path / "other"))
    with pytest.raises(OrchError, match="tar"):
        Local().feed(truncated_step.unpack(), tmp_path / "truncated")
    assert sorted(os.listdir(tmp_path)) == ["a b", "truncated"]


def test_ranks_run_from_the_folder_of_their_node(tmp_path: Path) -> None:
    root, digest = tmp_path / "shared", "ab" * 32
    settings = slurm_settings(None, (f"root={root}", "local=/scratch/orch"), {})
    with pytest.raises(RequestError, match="no archive of stack 'current'") as missing:
        local_stack(settings, "current")
    assert "orch provision --on slurm" in missing.value.hint
    (root / "archives").mkdir(parents=True)
    archive = {"file": "current-abab.tar", "sha256": digest, "tree": "cd"}
    (root / "archives" / "current.json").write_text(json.dumps(archive))
    stack = local_stack(settings, "current")
    assert stack == protocol.LocalStack(
        folder=f"/scratch/orch/stacks/current-{digest[:16]}", archive=f"{root}/archives/current-abab.tar", sha256=digest
    )
    inputs = replace(make_inputs(settings), local=stack)
    for launcher in ("srun", "mpirun"):
        decided = plan_run(make_request({"launcher": launcher}), inputs, SITE)
        assert f"{stack.folder}/bin/python" in decided.config.launcher
        assert decided.plan.run.python == inputs.python, "what starts the run is on the shared folder"
    (root / "archives" / "current.json").write_text(json.dumps({**archive, "file": "../../x"}))
    with pytest.raises(OrchError, match="is damaged"):
        local_stack(settings, "current")
