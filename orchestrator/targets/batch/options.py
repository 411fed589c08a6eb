"""The batch systems and their options on the command line, without what submits their jobs."""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path

from orchestrator.targets.entry import TargetEntry, option


def batch_entry(
    *, name: str, title: str, summary: str, settings: str, target: str, launchers: tuple[str, ...] = ()
) -> TargetEntry:
    """Return the entry of a batch system, whose options are --NAME KEY=VALUE and --NAME-file FILE.

    Args:
        name: the value of --on.
        title: the name in the help.
        summary: the sentence in the help of --on.
        settings: the beginning of the help of --NAME: the options of its jobs.
        target: the function that returns its BatchTarget, as `package.module:name`.
        launchers: launchers that only this system has.
    """
    help_text = f"{settings}; or login=HOST (a login node reached through SSH), root, runs, setup or max-requeues."
    file_help = f"TOML file with --{name} settings. Default: orch-{name}.toml in the current folder."
    variable = f"ORCH_{name.upper()}_FILE"
    assignments = option((), for_shared_folder=True, metavar="KEY=VALUE", help=f"{help_text} May be repeated.")
    file = option(None, for_shared_folder=True, metavar="FILE", envvar=variable, help=file_help)
    fields = ((name, tuple[str, ...], assignments), (f"{name}_file", Path | None, file))
    return TargetEntry(
        name=name,
        title=title,
        summary=summary,
        options=make_dataclass(f"{title}Options", fields, frozen=True, kw_only=True, namespace={"on": name}),
        target=target,
        launchers=launchers,
        has_shared_folder=True,
    )


PBS = batch_entry(
    name="pbs",
    title="PBS",
    summary="pbs: a job of OpenPBS or PBS Professional.",
    settings="Option of qsub, such as queue, select (of each node: ncpus=64:mem=200gb), place, walltime or account",
    target="orchestrator.targets.batch.pbs:target",
)
SLURM = batch_entry(
    name="slurm",
    title="Slurm",
    summary="slurm: a Slurm job.",
    settings="Option of sbatch, such as partition, account, time, cpus-per-task or exclusive; pmi; allocation",
    target="orchestrator.targets.batch.slurm:target",
    launchers=("srun",),
)
