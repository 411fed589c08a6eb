"""Check how the settings of Slurm are read from files, variables and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import OrchError, RequestError
from tests.support.slurm_plans import make_plan, slurm_settings


def test_later_settings_win_and_each_source_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('pmi = "none"\n[sbatch]\naccount = "b"\ntime = 30\nexclusive = true\n')
    environ = {"SBATCH_PARTITION": "p", "SBATCH_ACCOUNT": "a", "SBATCH_TIMELIMIT": "5", "HOME": "/"}
    result = slurm_settings(path, ("account=c", "mem_per_cpu=1G"), environ)
    assert result.launcher == {"pmi": "none"}
    assert result.options == {"account": "c", "partition": "p", "time": "30", "exclusive": "", "mem-per-cpu": "1G"}
    assert result.sources["partition"] == "SBATCH_PARTITION"
    assert result.sources["time"] == str(path)
    text = make_plan({}, result).describe()
    assert "# slurm partition: p (SBATCH_PARTITION)" in text
    assert "# slurm account: c (requested)" in text


def test_setting_without_a_value_is_refused() -> None:
    with pytest.raises(RequestError, match="--slurm partition: expected KEY=VALUE"):
        slurm_settings(None, ("partition",), {})


def test_setup_and_max_requeues_are_read_from_files_and_options(tmp_path: Path) -> None:
    source = tmp_path / "orch-slurm.toml"
    source.write_text('setup = ["module load gcc"]\nmax-requeues = 3\n')
    result = slurm_settings(source, ("setup=module load mpi",), {})
    assert (result.setup, result.max_requeues) == (("module load gcc", "module load mpi"), 3)
    assert slurm_settings(source, ("max-requeues=5",), {}).max_requeues == 5
    source.write_text("max-requeue = 3\n")
    with pytest.raises(RequestError, match="max-requeue: unknown key") as caught:
        slurm_settings(source, (), {})
    assert caught.value.hint == "Did you mean 'max-requeues'?"
    for assignments in (("setup=a\nb",), ("setup= ",), ("max-requeues=-1",)):
        with pytest.raises(OrchError):
            slurm_settings(None, assignments, {}).check()
