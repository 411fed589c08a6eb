"""Find the project of a user's script, and read which of its files go to the nodes."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from orch_node import content_store
from pathspec import GitIgnoreSpec

from orchestrator.errors import RequestError
from orchestrator.files import git
from orchestrator.model.printable import one_line
from orchestrator.model.project import Project
from orchestrator.model.recipe import Recipe

NONE = "none"  # the value of --project that sends the script alone
MOST_FILES = 20_000
LARGEST = 3  # files that the error about the limit names
VIRTUAL_ENVIRONMENT = "pyvenv.cfg"
GIT_IGNORE, IGNORE = ".gitignore", ".orchignore"
NOT_SENT = (".*", "__pycache__/")  # rules that apply outside of git, before those of these files
STATUS = ("status", "--porcelain", "--no-renames", "--untracked-files=all", "-z", "--", ".")
UNTRACKED = "??"  # as the status of a file


def project_of(recipe: Recipe, option: str | None, *, limit: int, left_out: Iterable[Path]) -> Project | None:
    """Return the project of the user's own script, or None if there is nothing to send but the script.

    It is the git repository that contains the script, without the files that git ignores; outside of git, the
    script's folder without hidden files, bytecode and virtual environments. `.orchignore` excludes further files, or
    adds files that git ignores. The script always belongs to it. For a module, the current folder counts in place of
    the script's.

    Args:
        recipe: the script or module.
        option: the value of --project: a folder, `none`, or None for the default.
        limit: the maximum size in MB.
        left_out: files and folders that are not sent: recorded runs, and the inventory, which may hold secrets.

    Raises:
        RequestError: if the folder is unsuitable, too large, or contains what cannot be sent.
    """
    if not recipe.own_script:
        if option is not None:
            raise RequestError("--project is for your own scripts.", hint="The files of a recipe are always sent.")
        return None
    if option == NONE:
        return None
    start = Path(recipe.script_file).parent if recipe.script_file else Path.cwd()
    folder = chosen_folder(option, recipe) if option else repository_of(start) or start
    in_git = repository_of(folder) is not None
    ignored = ignore_rules(folder, IGNORE)
    names = [*git_files(folder), *readmitted_files(folder, ignored)] if in_git else folder_files(folder)
    excluded = tuple(f"{path.resolve()}/" for path in left_out)
    listed = [name for name in names if not ignored.match_file(name) and not f"{folder}/{name}/".startswith(excluded)]
    if recipe.script_file:  # also if it is ignored
        listed.append(str(Path(recipe.script_file).relative_to(folder)))
    listed = sorted({*listed})
    if not listed:
        return None
    size = check_files(folder, listed, limit)
    try:
        entries = [content_store.describe(folder, name) for name in listed]
    except OSError as error:
        raise RequestError.about("unreadable-project-file", error=error) from None
    commit, modified = commit_state(folder, {*listed}, ignored) if in_git else ("", False)
    caller = Path.cwd()
    return Project(
        folder=str(folder),
        files={entry.name: entry.sha256 for entry in entries},
        kinds={entry.name: entry.kind for entry in entries if entry.kind},
        size=size,
        directory=str(caller.relative_to(folder)) if caller.is_relative_to(folder) else ".",
        source="git" if in_git else "folder",
        commit=commit,
        modified=modified,
    )


def has_module(folder: Path, name: str) -> bool:
    """Return whether a folder has a module or its package."""
    package = folder / name.partition(".")[0]
    return package.is_dir() or package.with_suffix(".py").is_file()


def chosen_folder(option: str, recipe: Recipe) -> Path:
    """Return the folder of --project.

    Raises:
        RequestError: if there is no such folder, or the script is not in it.
    """
    folder = Path(os.path.realpath(option))
    if not folder.is_dir():
        raise RequestError.about("missing-project", option=option)
    if recipe.script_file and not Path(recipe.script_file).is_relative_to(folder):
        raise RequestError(f"--project {option}: {recipe.script_file} is not in it.", hint="Name a folder above it.")
    return folder


def repository_of(folder: Path) -> Path | None:
    """Return the root of the git repository that contains a folder; None outside of git.

    Raises:
        RequestError: if there is a repository that git cannot use.
    """
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    return Path(git(folder, "rev-parse", "--show-toplevel").rstrip("\n")).resolve()


def git_files(folder: Path) -> list[str]:
    """Return the files below a folder that git tracks or does not ignore, those of submodules included."""
    output = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
    names = []
    for name in filter(None, output.split("\0")):
        path = f"{folder}/{name}"
        if os.path.isdir(path) and not os.path.islink(path):  # a submodule, or a repository inside this one
            names += [f"{name.rstrip('/')}/{inner}" for inner in git_files(folder / name)]
        elif os.path.lexists(path):  # a deleted file is tracked until the next commit
            names.append(name)
    return sorted(names)


def readmitted_files(folder: Path, rules: GitIgnoreSpec) -> list[str]:
    """Return the files that git ignores and that a rule such as `!data/*.bin` in .orchignore adds to the project."""
    if not any(pattern.include is False for pattern in rules.patterns):
        return []
    output = git(folder, "ls-files", "-z", "--others", "--ignored", "--exclude-standard")
    return [name for name in output.split("\0") if name and rules.check_file(name).include is False]


def commit_state(folder: Path, sent_names: Collection[str], ignored: GitIgnoreSpec) -> tuple[str, bool]:
    """Return the commit of a repository, '' before the first, and whether the files that are sent differ from it.

    Deleted files and changed submodules count as differences, ignored files do not.

    Raises:
        RequestError: if git fails.
    """
    # Names are below the root of the repository.
    prefix, commit, *_ = git(folder, "rev-parse", "--show-prefix", "--revs-only", "HEAD").split("\n")
    modified = False
    for entry in filter(None, git(folder, *STATUS).split("\0")):
        state, name = entry[:2], entry[3:].removeprefix(prefix)
        is_gone = state != UNTRACKED and not (folder / name).is_file() and not ignored.match_file(name)
        modified = modified or name in sent_names or is_gone
    return commit, modified


def ignore_rules(folder: Path, *names: str) -> GitIgnoreSpec:
    """Return the rules of those files in a folder that exist, which have the syntax of .gitignore.

    Raises:
        RequestError: if a file cannot be read or has an invalid rule.
    """
    rules = GitIgnoreSpec([])
    for path in filter(Path.is_file, (folder / name for name in names)):
        try:
            rules += GitIgnoreSpec.from_lines(path.read_text("utf-8-sig").splitlines())
        except (OSError, ValueError) as error:
            raise RequestError(f"{path}: {error}.", hint="It needs the syntax of .gitignore.") from None
    return rules


def is_ignored(path: str, rules: Mapping[str, GitIgnoreSpec]) -> bool:
    """Return whether the nearest .gitignore with a pattern for a path excludes it.

    Args:
        path: the path; that of a folder ends with a slash.
        rules: the patterns of each .gitignore by its folder.
    """
    for folder in map(str, Path(path).parents):
        included = rules[folder].check_file(path[len(folder) + 1 :]).include if folder in rules else None
        if included is not None:
            return included
    return False


def folder_files(folder: Path) -> list[str]:
    """Return the files below a folder except hidden and ignored ones, bytecode and virtual environments.

    Raises:
        RequestError: if there are too many.
    """
    names: list[str] = []
    rules = {str(folder): GitIgnoreSpec.from_lines(NOT_SENT) + ignore_rules(folder, GIT_IGNORE, IGNORE)}
    for parent, folders, files in os.walk(folder):
        if GIT_IGNORE in files and parent not in rules:  # such as that of a folder of runs
            rules[parent] = ignore_rules(Path(parent), GIT_IGNORE)
        folders[:] = [
            name
            for name in folders
            if not os.path.exists(os.path.join(parent, name, VIRTUAL_ENVIRONMENT))
            and not is_ignored(os.path.join(parent, name, ""), rules)
        ]
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        paths = [os.path.join(parent, name) for name in (*links, *files)]
        names += [path[len(str(folder)) + 1 :] for path in paths if not is_ignored(path, rules)]
        if len(names) > MOST_FILES:
            raise RequestError.about("many-project-files", folder=folder, most=MOST_FILES)
    return sorted(names)


def check_files(folder: Path, names: Iterable[str], limit: int) -> int:
    """Return the size of the files in bytes.

    Raises:
        RequestError: if they are larger than `limit` MB, or if one cannot be sent.
    """
    sizes = {name: file_size(folder, name) for name in names}
    total = sum(sizes.values())
    if total > limit * 1e6:
        raise RequestError.about(
            "large-project", folder=folder, size=total / 1e6, limit=limit, files=largest_files(sizes)
        )
    return total


def largest_files(sizes: Mapping[str, int]) -> str:
    """Return the names and sizes of the largest files, for an error about a limit."""
    names = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:LARGEST]
    return ", ".join(f"{name} ({sizes[name] / 1e6:.1f} MB)" for name in names)


def file_size(folder: Path, name: str) -> int:
    """Return the size of a file, 0 for a link; raise RequestError if it cannot be sent."""
    path = f"{folder}/{name}"
    status, problem = os.lstat(path), ""
    if not name.isprintable():
        problem = "has a name that cannot be printed"
    elif stat.S_ISLNK(status.st_mode):
        target = os.readlink(path)
        is_inside = Path(os.path.realpath(path)).is_relative_to(folder)  # resolve() fails in a loop
        if os.path.isabs(target) or not is_inside:
            kind = "an absolute link" if is_inside else "a link out of the project"
            problem = f"is {kind}, to {target}, which is not the same file on the nodes"
    elif not stat.S_ISREG(status.st_mode):
        problem = "is neither a file nor a link, so it cannot be sent"
    if problem:
        raise RequestError.about("unsuitable-file", path=one_line(path), problem=one_line(problem))
    return 0 if stat.S_ISLNK(status.st_mode) else status.st_size
