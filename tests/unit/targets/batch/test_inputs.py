"""Check how settings are read from files, variables and options, and runs whose ranks are in an image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orch_node.agent import containers
from orch_node.agent.containers import ContainerError
from orch_node.protocol import container

from orchestrator import load
from orchestrator.errors import OrchError, RequestError
from orchestrator.files import TRAIN
from orchestrator.planning.request import check_unsupported_options
from orchestrator.targets.batch.inputs import batch_settings, check_image_exists
from orchestrator.targets.batch.pbs import PBS
from orchestrator.targets.batch.plan import plan_run
from orchestrator.targets.batch.settings import BatchSettings, Image
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.batch.system import JobRequest
from orchestrator.targets.batch.target import BatchTarget
from tests.support.files import write_files, write_program
from tests.support.slurm_plans import make_host_facts, make_plan, make_request, plan_request, slurm_settings


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


def test_variable_that_a_job_cannot_have_is_named_and_stops_no_other_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_NO_KILL", "set")
    with pytest.raises(OrchError, match=r"--slurm no-kill \(SBATCH_NO_KILL\): orch sets"):
        slurm_settings(None, ()).check()
    assert BatchTarget(SLURM).login_of("slurm:login1") == "login1"


def test_variables_of_sbatch_become_options_of_sbatch_or_are_left_to_it() -> None:
    names = ("CPU_FREQ_REQ", "BURST_BUFFER", "REQ_SWITCH", "WAIT4SWITCH", "USE_MIN_NODES", "IGNORE_PBS")
    result = slurm_settings(None, (), {f"SBATCH_{name}": "1" for name in names})
    assert result.options == {"cpu-freq": "1", "bb": "1", "use-min-nodes": "", "ignore-pbs": ""}


def test_empty_value_resets_an_option(tmp_path: Path) -> None:
    """Check that sbatch does not take the next option, such as --exclusive, for the value."""
    path = tmp_path / "site.toml"
    path.write_text('[sbatch]\naccount = "a"\nqos = ""\nhold = true\nkill-on-invalid-dep = true\n')
    result = slurm_settings(path, ("account=", "exclusive="), {"SBATCH_PARTITION": ""})
    assert result.options == {"hold": "", "kill-on-invalid-dep": "true", "exclusive": ""}
    assert result.sources.keys() == result.options.keys()


def test_setup_and_max_requeues_are_read_from_files_and_options(tmp_path: Path) -> None:
    source = tmp_path / "orch-slurm.toml"
    source.write_text('\ufeffsetup = ["module load gcc"]\nmax-requeues = 3\n')
    result = slurm_settings(source, ("setup=module load mpi",), {})
    assert (result.setup, result.max_requeues) == (("module load gcc", "module load mpi"), 3)
    assert slurm_settings(source, ("max-requeues=5",), {}).max_requeues == 5
    source.write_text("max-requeue = 3\n")
    with pytest.raises(RequestError, match="max-requeue: unknown key") as caught:
        slurm_settings(source, (), {})
    assert "The other keys are python, setup, max-requeues, root, login, runs, allocation, pmi" in caught.value.hint
    with pytest.raises(OrchError):
        slurm_settings(None, ("max-requeues=-1",), {})


REFUSED_FILES = (
    (SLURM, 'partition = "cpu"\ntime = "12:00:00"\n', "unknown key", "belong below a line [sbatch]"),
    (SLURM, 'mounts = ["/data:/data"]\n', "unknown key", "those of an image below [container]"),
    (SLURM, '[container]\nmount = "/data"\n', "unknown key", "keys of [container] are image, python, mounts"),
    *((PBS, f'{key} = "x"\n', f"{key}: unknown key", "belong below a line [qsub]") for key in ("queue", "l")),
    (SLURM, "[sbatch]\ntime = 12:00:00\n", "time: expected a string; write it in quotes", ""),
    (SLURM, 'sbatch = ["--partition=cpu"]\n', "sbatch: .*valid dictionary", ""),
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
    for assignments, can_resume in (
        ((), False),
        (("requeue",), True),
        (("no-requeue=no",), True),
        (("requeue=False",), False),
    ):
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
        (PBS, "N=name", "The job has the name of the run."),
        (PBS, "l=nodes=2:ppn=4", "Use --nodes."),
        (PBS, "allocation=new", ""),
    ):
        with pytest.raises(OrchError) as caught:
            batch_settings(system, None, (assignment,), {}).check()
        assert hint in caught.value.hint


def make_settings(*image_options: str, image: str = "/shared/torch.sif") -> BatchSettings:
    return slurm_settings(None, ("login=login1",), {}, image=image, image_options=image_options)


def plan_with(fields: dict[str, Any], settings: BatchSettings) -> None:
    request = replace(make_request({"nodes": 2}), **fields)
    check_unsupported_options(request, BatchTarget(SLURM).refuses)
    plan_request(request, settings)


def test_impossible_images_are_refused() -> None:
    for fields, image_options, image, problem in (
        ({}, (), "docker://torch", "runs do not pull images"),
        ({}, (), "torch.sif", "not an absolute path"),
        ({}, ("arguments=--pid",), "/torch.sif", "orch sets this option itself"),
        ({"backend": "mpi", "launcher": "mpirun"}, (), "/torch.sif", "run without containers"),
    ):
        with pytest.raises(OrchError) as refused:
            plan_with(fields, make_settings(*image_options, image=image))
        assert problem in f"{refused.value.message} {refused.value.hint}"


def test_relative_image_path_starts_where_it_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="no such image"):
        check_image_exists(slurm_settings(None, (), {}, image="torch.sif"))
    (tmp_path / "torch.sif").touch()
    check_image_exists(slurm_settings(None, (), {}, image="torch.sif"))
    text = '[container]\nimage = "../torch.sif"\npython = "/opt/bin/python"\n'
    file = write_files(tmp_path / "site", {"orch-slurm.toml": text}) / "orch-slurm.toml"
    for result in (
        slurm_settings(None, (), {}, image="torch.sif", image_options=("python=/opt/bin/python",)),
        slurm_settings(file, (), {}),
    ):
        assert result.image == Image(image=str(tmp_path / "torch.sif"), python="/opt/bin/python")
    assert slurm_settings(file, (), {}, image="").image is None


def test_image_needs_no_stack_on_the_nodes() -> None:
    """Ignore the packages of the interpreter that starts the ranks: the image has its own torch."""
    bare = replace(make_host_facts(), packages={})
    _, config = plan_request(make_request({"nodes": 2}), make_settings(), facts=bare, planner=plan_run)
    assert (config.torch, config.preload) == (None, ())
    spec = container.parse(config.files["container.json"])
    assert (spec.engine, spec.image) == ("apptainer", "/shared/torch.sif")
    assert spec.preload == load.stack("current").preload


def test_rank_in_apptainer_has_no_secret_in_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, config = plan_request(make_request(), make_settings(), planner=plan_run)
    spec = container.parse(config.files["container.json"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContainerError, match="neither apptainer nor singularity"):
        containers.exec_command(tmp_path, spec, node="n1", rank=1)
    write_program(tmp_path / "singularity", "#!/bin/sh\n")
    argv = containers.exec_command(tmp_path, spec, node="n1", rank=1)
    assert argv[:2] == ["singularity", "exec"]
    assert argv[2 : 2 + len(spec.options)] == list(spec.options)
    assert argv[2 + len(spec.options) :] == [
        *("--env", f"ORCH_RUN_DIR={tmp_path}", "--env", "RANK=1", "/shared/torch.sif"),
        *("python3", "-u", str(TRAIN / "node.py"), "contained-rank", str(tmp_path)),
    ]
