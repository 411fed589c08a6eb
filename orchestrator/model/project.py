"""The project of a user's script: the files that go with it to other machines, and the modules that it needs there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orch_node.protocol.files import FileEntry, folder_hash
from orch_node.protocol.node_names import grouped

from orchestrator.errors import RequestError
from orchestrator.model.decision import Decision
from orchestrator.model.printable import counted, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The files of a project as they were when the run was planned.

    Attributes:
        folder: the folder on this machine, an absolute path.
        files: the SHA-256 of each file by its path below the folder; of a symbolic link, that of its target's path.
        kinds: the kinds of the files that are links or executable, as `folder_hash` names them.
        size: the size of all files in bytes.
        directory: the caller's folder, relative to `folder`; `.` if the caller was elsewhere.
        source: where the list of files comes from: `git` or `folder`.
        commit: the full hash of the git commit; empty outside of git or before the first commit.
        modified: whether files differ from the commit, or are new.
    """

    folder: str
    files: dict[str, str]
    size: int
    directory: str = "."
    source: str = "folder"
    kinds: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    modified: bool = False

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the files' names, kinds and contents, in hexadecimal digits."""
        return folder_hash(FileEntry(name, self.kinds.get(name, ""), content) for name, content in self.files.items())

    def path_in(self, copy: str, path: str) -> str:
        """Return where a file of the project is in a copy of it."""
        return f"{copy}/{PurePosixPath(path).relative_to(self.folder)}"

    def working_directory(self, copy: str) -> str:
        """Return where a script starts in a copy of the project: the place of the caller's folder."""
        return copy if self.directory == "." else f"{copy}/{self.directory}"

    def changes_since(self, earlier: Project) -> list[str]:
        """Return the files that are new, changed or gone in comparison to an earlier state of the project."""
        names = sorted({*self.files, *earlier.files})
        return [name for name in names if self.entry(name) != earlier.entry(name)]

    def entry(self, name: str) -> FileEntry | None:
        """Return the kind and the hash of a file, or None if there is none."""
        return FileEntry(name, self.kinds.get(name, ""), self.files[name]) if name in self.files else None

    def decision(self) -> Decision:
        """Return the decision that names the folder and what is sent of it."""
        count = counted(len(self.files), "file")
        commit = f"; commit {self.commit[:7]}{', modified' if self.modified else ''}" if self.commit else ""
        selected = "what git tracks or does not ignore" if self.source == "git" else "the script's folder"
        value = f"{self.folder}, {count}, {self.size / 1e6:.1f} MB, {self.digest[:12]}{commit}"
        return Decision("project", value, f"{selected}; --project none sends the script alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """The modules that a script imports and that its project does not contain.

    Attributes:
        importers: the file that imports each module.
        source: the stack or the interpreter that should have them, such as `stack current`.
        distributions: the names on PyPI of packages that are not those of their modules with dashes.
    """

    importers: Mapping[str, str]
    source: str
    distributions: Mapping[str, str] = field(default_factory=dict)

    def check(self, missing: Collection[str]) -> None:
        """Check that no module is missing; names that are not imported are ignored.

        Raises:
            RequestError: if one is missing.
        """
        names = [name for name in self.importers if name in missing]
        if names:
            modules = grouped((self.importers[name], name) for name in names)
            files = "; ".join(f"{file} imports {' and '.join(imports)}" for file, imports in modules.items())
            packages = ", ".join(f'"{self.distributions.get(name, name.replace("_", "-"))}"' for name in names)
            raise RequestError.about("missing-modules", files=one_line(files), source=self.source, packages=packages)
