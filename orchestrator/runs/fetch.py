"""Fetching of a folder from the nodes of a run: resumable, and verified by hashes on both sides."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from orch_node.standalone import receive_files, send_files

from orchestrator.errors import ExecuteError
from orchestrator.files import write_all
from orchestrator.runs.confined_folder import ConfinedFolder
from orchestrator.runs.file_sender import Entry as Entry
from orchestrator.runs.file_sender import FileSender, Remote

IMPOSSIBLE_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
MAX_PARALLEL_NODES = 64  # each has an ssh process here
PARTS = ".orch-parts"  # a folder of incomplete files, which the next fetch continues
# What orch itself writes, and gives another name or deletes once it is complete.
INCOMPLETE_NAME = re.compile(
    r"\.(?:checkpoint-staging|model-staging|discarded-(?:checkpoint-\d+|model)|orch-parts|orch-content"
    r"|.+\.\d+-[0-9a-f]{8}\.tmp)",
    re.DOTALL,
)
FETCH_HINT = "Links below the folder are not followed; --to names another one."
INCOMPLETE = "orch has not completed it"
BYTECODE = "__pycache__"
ZEROS = bytes(send_files.BLOCK)
Hashes = Mapping[str, str] | None  # SHA-256 by path
EXECUTABLE_MODE, FILE_MODE = 0o700, 0o600


@dataclass(slots=True, kw_only=True)
class FetchListener:
    """Callbacks for the progress of a fetch.

    Attributes:
        total: called with the number of files to compare or copy, and their size in bytes.
        file: called with the path and the size of each file that is copied.
        advance: called with the number of bytes of each part that was compared or copied.
    """

    total: Callable[[int, int], None] = lambda files, size: None
    file: Callable[[str, int], None] = lambda path, size: None
    advance: Callable[[int], None] = lambda size: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A node that has files of a run.

    Attributes:
        name: the name of the node, and of the folder for its files if they differ from those of the first node.
        remote: the connection to it.
        python: its Python interpreter.
        run_dir: the folder of the run there, with a record of the files that other nodes have sent; '' for no record.
    """

    name: str
    remote: Remote
    python: str = "python3"
    run_dir: str = ""


@dataclass(slots=True, kw_only=True)
class Collected:
    """The fetched files of a folder.

    Attributes:
        folder: the local folder.
        source: the folder on the nodes.
        files: the entries that are complete in the local folder.
        downloaded: the paths of those that had to be copied.
        replaced: the number of local files with other content that have been replaced.
        skipped: the entries that cannot be fetched, each with its problem; the path of a node that cannot be read ends
            with a slash.
        unchanged: the number of files that are as they were sent, or on several nodes with the same content.
    """

    folder: Path
    source: str = ""
    files: list[Entry] = field(default_factory=list)
    downloaded: list[str] = field(default_factory=list)
    replaced: int = 0
    skipped: list[Entry] = field(default_factory=list)
    unchanged: int = 0

    @property
    def is_complete(self) -> bool:
        """Return whether nothing was left out but what orch itself is still writing."""
        return all(entry.problem == INCOMPLETE for entry in self.skipped)


def collect(
    sources: Sequence[Source],
    folders: Sequence[str],
    target: Path,
    *,
    patterns: tuple[str, ...] = (),
    listener: FetchListener,
    unchanged: Hashes = None,
    expected: Hashes = None,
) -> Collected:
    """Fetch the files of a folder that match one of the patterns, or all files without patterns.

    A local file with the right hash is not fetched again. The nodes are not trusted: only plain files, folders, and
    links that stay inside are written, all below `target`, and no file becomes longer than announced.

    Args:
        sources: the nodes. Files of the others are stored below their names if they differ from those of the first.
        folders: possible names of the folder; on each node the first that exists is used.
        target: the local folder.
        patterns: shell patterns for the path of a file, or for the first folder in it.
        listener: the callbacks for the progress.
        unchanged: the hashes by path of files that are left out as long as they have them, as is bytecode.
        expected: the hashes by path of the only files that are fetched; links that have them may lead elsewhere.

    Raises:
        NoFolderError: if none of the folders exists.
        ExecuteError: if a file cannot be listed, read or written, or there is not enough space.
    """
    result = Collected(folder=target)
    fetch = Fetch(result, listener, unchanged, expected)
    first_entries: Sequence[Entry] = ()
    for start in range(0, len(sources), MAX_PARALLEL_NODES):
        with ExitStack() as stack:
            group = sources[start : start + MAX_PARALLEL_NODES]
            for name, sender in open_senders(stack, group, folders, result.skipped, is_first=start == 0).items():
                result.source = result.source or sender.folder
                entries = [entry for entry in sender.entries if matches(entry.path, patterns)]
                if not sender.folder or sender.folder != result.source:
                    continue
                if name == sources[0].name:
                    first_entries = sender.entries
                    fetch.download(sender, entries)
                else:
                    fetch.download(sender, entries, prefix=f"{unused_name(name, first_entries)}/")
    if not result.source:
        raise NoFolderError(f"There is no folder {' or '.join(dict.fromkeys(folders))}.")
    fetch.local.remove_folder(PARTS)
    return result


def open_senders(
    stack: ExitStack, sources: Sequence[Source], folders: Sequence[str], skipped: list[Entry], *, is_first: bool
) -> dict[str, FileSender]:
    """Start the senders of some nodes, and return them with their lists; a node that cannot be reached is left out.

    Raises:
        ExecuteError: if the first node of the run (`is_first`) cannot be reached, or sends an invalid list.
    """
    senders: dict[str, FileSender] = {}
    for step in ("open", "list"):  # these nodes list their folders at the same time
        for source in sources:
            try:
                if step == "open":
                    command = receive_files.command(source.python, send_files.__file__)
                    program = stack.enter_context(source.remote.open_program(command))
                    senders[source.name] = FileSender(program, folders, source.run_dir)
                elif source.name in senders:
                    senders[source.name].list()
            except ExecuteError as error:
                if is_first and source is sources[0]:
                    raise
                senders.pop(source.name, None)
                skipped.append(Entry(path=f"{source.name}/", kind=send_files.FOLDER, problem=error.message))
    return senders


class NoFolderError(ExecuteError):
    """An error for a folder that no node has."""

    default_hint = (
        "If the script has written elsewhere: --from FOLDER, an absolute path or one relative to what `orch fetch` "
        "shows. `orch runs` shows the state of the run."
    )


def unused_name(name: str, entries: Sequence[Entry]) -> str:
    """Return the name of a node, made longer while the first node has a file or a folder of that name."""
    names = {entry.path.partition("/")[0] for entry in entries}
    while name in names:
        name += "-files"
    return name


class Fetch:
    """The state of a fetch.

    Attributes:
        result: what has been fetched so far.
        first: what the first node has, by path; first_hashes has the hashes of its files.
    """

    def __init__(self, result: Collected, listener: FetchListener, unchanged: Hashes, expected: Hashes) -> None:
        self.result = result
        self.local = ConfinedFolder(result.folder)
        self.had_files = result.folder.is_dir() and any(result.folder.iterdir())
        self.listener = listener
        self.skips_bytecode = unchanged is not None
        self.sent_hashes = unchanged or {}
        self.expected = expected
        self.first: dict[str, Entry] = {}
        self.first_hashes: dict[str, str] = {}

    def download(self, sender: FileSender, entries: Sequence[Entry], prefix: str = "") -> None:
        """Fetch entries of a node, without those that the first node has, too.

        Args:
            sender: the sender of the node.
            entries: the entries.
            prefix: the local folder for them, with a slash; '' for the first node.

        Raises:
            ExecuteError: if a file cannot be read or written, or there is not enough space.
        """
        missing = [entry for entry in self.usable(entries, prefix) if self.first.get(entry.path) != entry]
        files = [entry for entry in missing if entry.kind == send_files.FILE]
        self.listener.total(len(files), sum(entry.size for entry in files))
        with self.local.writing(hint=FETCH_HINT):
            hashed = list(sender.hashes(files))
            absent = {entry: self.part_size(entry, prefix) for entry in hashed if self.is_absent(entry, prefix)}
            check_room(self.result.folder, sum(entry.size - size for entry, size in absent.items()))
            sender.request([entry.path, offset, entry.size] for entry, offset in absent.items())
            for entry, offset in absent.items():
                self.receive(sender, entry, offset, prefix)
            for entry in missing:
                if entry.kind != send_files.FILE:
                    self.make(entry, prefix)
        if not prefix:
            self.first = {entry.path: entry for entry in entries}
            self.first_hashes = {entry.path: entry.sha256 for entry in hashed}

    def usable(self, entries: Sequence[Entry], prefix: str) -> Iterator[Entry]:
        """Yield the entries that can be fetched, and record those that are left out."""
        incomplete_paths = set()
        for entry in entries if self.expected is None else self.expected_entries(entries):
            parts = entry.path.split("/")
            if self.skips_bytecode and BYTECODE in parts and entry.path.endswith(".pyc"):
                continue
            incomplete = next((index for index, part in enumerate(parts, 1) if INCOMPLETE_NAME.fullmatch(part)), 0)
            path = "/".join(parts[:incomplete])
            if path and path not in incomplete_paths:
                self.leave_out(replace(entry, path=path), prefix, INCOMPLETE)
                incomplete_paths.add(path)
            elif not path and entry.problem:
                self.leave_out(entry, prefix, entry.problem)
            elif not path:
                yield entry

    def expected_entries(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Yield the entries that are expected; links that lead elsewhere must have the expected target."""
        assert self.expected is not None
        for entry in entries:
            if entry.path in self.expected and (
                entry.kind != send_files.LINK or self.expected[entry.path] == hash_of_target(entry)
            ):
                yield replace(entry, problem="")

    def leave_out(self, entry: Entry, prefix: str, problem: str) -> None:
        """Record an entry that cannot be fetched."""
        self.result.skipped.append(replace(entry, path=prefix + entry.path, problem=problem))

    def is_absent(self, entry: Entry, prefix: str) -> bool:
        """Return whether a file has to be copied, and record it if that is not so."""
        # What the first node has received is where it belongs; on the others it may be older than on the first.
        left_out = (self.first_hashes.get(entry.path), self.sent_hashes.get(entry.path), prefix and entry.received)
        if entry.problem:
            self.leave_out(entry, prefix, entry.problem)
        elif entry.sha256 in left_out:
            self.result.unchanged += 1
        elif self.has_file(entry, prefix):
            self.result.files.append(replace(entry, path=prefix + entry.path))
        else:
            return True
        self.listener.advance(entry.size)
        return False

    def has_file(self, entry: Entry, prefix: str) -> bool:
        """Return whether the local file has the content of an entry."""
        path = prefix + entry.path
        with suppress(OSError):  # there is a link or a folder of that name, or it cannot be one here
            digest = self.local.digest(path) if self.had_files and self.local.size(path) == entry.size else None
            return digest is not None and digest.hexdigest() == entry.sha256
        return False

    def part_size(self, entry: Entry, prefix: str) -> int:
        """Return how many bytes of a file an earlier fetch has copied."""
        size = self.local.size(part_of(prefix + entry.path, entry.sha256)) if self.had_files else 0
        return size if size <= entry.size else 0

    def receive(self, sender: FileSender, entry: Entry, offset: int, prefix: str) -> None:
        """Copy a file from an offset on.

        Raises:
            ExecuteError: if the connection is lost.
            OSError: if it cannot be written.
        """
        path = prefix + entry.path
        part = part_of(path, entry.sha256)
        digest = (self.local.digest(part) if offset else None) or hashlib.sha256()
        self.listener.file(path, entry.size)
        self.listener.advance(offset)
        with self.local.open(part, os.O_RDWR | os.O_CREAT, make=True) as file:
            file.seek(offset)
            for block in sender.blocks(entry.size - offset):
                digest.update(block)
                if block == ZEROS[: len(block)]:  # sparse files stay sparse
                    file.seek(len(block), os.SEEK_CUR)
                else:
                    write_all(file, block)
                self.listener.advance(len(block))
            file.truncate(entry.size)
            os.fchmod(file.fileno(), EXECUTABLE_MODE if entry.executable else FILE_MODE)
        if digest.hexdigest() != entry.sha256:
            self.leave_out(entry, prefix, "it changed while it was read")
            self.local.remove(part)
            return
        with suppress(OSError):
            self.result.replaced += bool(self.had_files and self.local.size(path))
        with self.naming(entry, prefix):
            self.local.move(part, path)
            self.result.downloaded.append(path)
            self.result.files.append(replace(entry, path=path))
        self.local.remove(part)

    def make(self, entry: Entry, prefix: str) -> None:
        """Make a link, or a folder without entries."""
        path = prefix + entry.path
        if entry.kind == send_files.LINK and self.sent_hashes.get(entry.path) == hash_of_target(entry):
            self.result.unchanged += 1
            return
        with self.naming(entry, prefix):
            if entry.kind == send_files.FOLDER:
                self.local.make_folder(path)
            elif self.local.read_link(path) != entry.target:
                self.local.make_link(part_of(path, ""), entry.target)
                self.local.move(part_of(path, ""), path)
                self.result.downloaded.append(path)
            self.result.files.append(replace(entry, path=path))

    @contextmanager
    def naming(self, entry: Entry, prefix: str) -> Iterator[None]:
        """Leave an entry out if the local file system cannot have its name."""
        try:
            yield
        except OSError as error:
            if error.errno not in IMPOSSIBLE_NAME:
                raise
            self.leave_out(entry, prefix, f"this file system cannot have such a name: {error.strerror}")


def hash_of_target(entry: Entry) -> str:
    """Return the SHA-256 of the target of a link, as projects record it."""
    return hashlib.sha256(entry.target.encode(errors="surrogateescape")).hexdigest()


def part_of(path: str, sha256: str) -> str:
    """Return the path of a file while it is incomplete, which depends on its content."""
    return f"{PARTS}/{hashlib.sha256(os.fsencode(f'{path}:{sha256}')).hexdigest()}"


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a path or its first folder matches one of the patterns, or there are no patterns."""
    first = PurePosixPath(path).parts[0]
    return not patterns or any(fnmatchcase(path, pattern) or fnmatchcase(first, pattern) for pattern in patterns)


def check_room(target: Path, needed: int) -> None:
    """Raise ExecuteError if the target's disk has too little space for what has to be fetched."""
    free = shutil.disk_usage(next(path for path in (target, *target.absolute().parents) if path.exists())).free
    if needed > free:
        raise ExecuteError.about("no-room", target=target, free=free / 2**30, needed=needed / 2**30)
