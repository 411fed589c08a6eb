"""Check how the settings of Slurm are read from files, variables and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import OrchError, RequestError
from orchestrator.targets.batch.inputs import batch_settings
from orchestrator.targets.batch.pbs import PBS
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.batch.system import JobRequest
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


BELOW_SBATCH, BELOW_QSUB = "belong below a line [sbatch]", "Options of qsub belong below a line [qsub]."
REFUSED_FILES = (
    (SLURM, 'partition = "cpu"\ntime = "12:00:00"\n', "unknown key", BELOW_SBATCH),
    (SLURM, 'constraint = "avx512"\n', "unknown key", BELOW_SBATCH),  # resembles container
    (SLURM, 'queue = "long"\n', "unknown key", "below a line [sbatch], as partition"),
    (SLURM, 'mounts = ["/data:/data"]\n', "unknown key", "mounts belongs below a line [container]"),
    (SLURM, "nodes = 4\n", "unknown key", "Use --nodes."),
    (SLURM, '[container]\nmount = "/data"\n', "unknown key", "Did you mean 'mounts'?"),
    *((PBS, f'{key} = "x"\n', f"{key}: unknown key", BELOW_QSUB) for key in ("queue", "l")),
    (SLURM, '[sbatch]\npartition = "cpu"\nroot = "/x"\n', "root is a setting of orch.*above the line", ""),
    (SLURM, "[sbatch]\ntime = 12:00:00\n", "time: expected a string; write it in quotes", ""),
    (SLURM, 'sbatch = ["--partition=cpu"]\n', r"expected a table: a line \[sbatch\]", ""),
)


def test_misplaced_key_or_wrong_value_is_refused_with_its_table(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    for system, content, problem, hint in REFUSED_FILES:
        path.write_text(content)
        with pytest.raises(RequestError, match=problem) as caught:
            batch_settings(system, path, (), {})
        assert hint in caught.value.hint


def test_short_options_count_as_the_long_ones(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('[sbatch]\np = "cpu"\nt = 30\nH = true\n')
    result = slurm_settings(path, ("p=big", "c=8"), {})
    assert result.options == {"partition": "big", "time": "30", "hold": "", "cpus-per-task": "8"}
    result.check()
    assert slurm_settings(None, ("H",), {}).options == {"hold": ""}
    assignments = ("q=long", "l=walltime=2:00:00,software=abaqus", "W=depend=afterok:7,group_list=g", "h")
    expected = {"queue": "long", "walltime": "2:00:00", "software": "abaqus", "depend": "afterok:7", "group": "g"}
    assert batch_settings(PBS, None, assignments, {}).options == {**expected, "hold": ""}
    with pytest.raises(RequestError, match="W=block=true"):
        batch_settings(PBS, None, ("W=block=true",), {})


def test_an_option_that_is_set_to_no_is_switched_off(tmp_path: Path) -> None:
    """Use both values of TOML and the command line; orch sets some of these options by default."""
    path = tmp_path / "site.toml"
    path.write_text("[sbatch]\nno-requeue = true\nexclusive = false\nhold = false\n")
    script = make_plan({}, slurm_settings(path, (), {})).describe()
    options = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert not {"#SBATCH --exclusive", "#SBATCH --mem=0", "#SBATCH --hold", "#SBATCH --requeue"} & {*options}
    assert "#SBATCH --no-requeue" in options
    path.write_text("[sbatch]\nrequeue = false\n")
    for assignments, can_resume in (((), False), (("requeue",), True), (("no-requeue=no",), True), (("p=cpu",), False)):
        settings = slurm_settings(path, assignments, {"SBATCH_REQUEUE": "1"})
        assert SLURM.can_resume(settings.options) == can_resume
        script = make_plan({}, settings).describe()
        assert ("#SBATCH --requeue\n" in script, "#SBATCH --no-requeue\n" in script) == (can_resume, not can_resume)
    path.write_text("[qsub]\nrerun = false\nhold = false\n")
    result = batch_settings(PBS, path, (), {})
    assert not PBS.can_resume(result.options)
    options = [*PBS.job_options(JobRequest(name="x", nodes=1, ppn=1), result.options)]
    assert "-r n" in options
    assert "-h" not in options


def test_option_that_a_job_cannot_have_is_refused() -> None:
    for system, assignment, hint in (
        (SLURM, "partition", "Example: --slurm partition=cpu"),
        (SLURM, "python=/p", "Use --python PATH."),
        (SLURM, "N=4", "Use --nodes."),
        (SLURM, "z=1", "Use the long name"),
        (PBS, "partition=cpu", "Did you mean 'queue'?"),
        (PBS, "N=name", "The job has the name of the run."),
        (PBS, "l=nodes=2:ppn=4", "Use --nodes."),
        (PBS, "allocation=new", ""),
    ):
        with pytest.raises(OrchError) as caught:
            batch_settings(system, None, (assignment,), {}).check()
        assert hint in caught.value.hint
