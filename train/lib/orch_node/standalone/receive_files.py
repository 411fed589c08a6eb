"""Write files from standard input, and pass the input on to other nodes at the same time.

The input is this program (BOOTSTRAP runs it), a line of JSON, and the bytes of all pieces, compressed if `compressed`:

  root      the folder below which files are written, and the ssh configuration is
  pieces    path, mode, sha256, size, offset and length of each piece of a file
  receiver  the command that reads the bytes in place of pieces
  nodes     [name, command] of each node that gets the input, too; this node passes it on to two of them, and these to
            the others, so that no link carries it more than twice
  stored    whether this node has the pieces already, so that they are not in the input
  sender    the command that prints the bytes in place of stored pieces
  source    its own text, for these nodes

A file gets its name when it is complete and has its hash. What has arrived before an interruption is continued. The
output is a line of JSON: why nodes have not got the pieces, by their names, which is "" for this one; null for those to
which a node that has failed would have passed them on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

# Some login shells accept no line breaks in arguments.
BOOTSTRAP = "import sys; source = sys.stdin.buffer.read({}); exec(source)"
CHUNK = 1 << 20
START_MARKER = b"orch:program-output\n"  # of orch_node.reach, before the output of a program on another node
PART = ".incoming-"


def main() -> None:
    """Write the pieces, and print why nodes have not got them."""
    head = json.loads(sys.stdin.buffer.readline().decode())
    is_stored = head.pop("stored")
    children = start_children({**head, "stored": False, "compressed": head["compressed"] and not is_stored})
    blocks = pass_on(stored_blocks(head) if is_stored else iter(lambda: sys.stdin.buffer.read(CHUNK), b""), children)
    problems: dict[str, str | None] = {}
    try:
        if not is_stored and head["receiver"]:
            feed(head["receiver"], blocks)
        elif not is_stored:
            write_pieces(map(zlib.decompressobj().decompress, blocks) if head["compressed"] else blocks, head)
        for _ in blocks:
            pass
    except (EOFError, OSError, ValueError, zlib.error) as error:
        problems[""] = describe(error)
    for _ in blocks:
        pass  # the other nodes get the rest, and the sender does not report a lost connection instead of the error
    for child in children:
        problems.update(child.end())
    print(json.dumps(problems), flush=True)


def describe(error: Exception) -> str:
    """Return the message of an error, with the file."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error).split("\n")[-1]


class RemoteProgram:
    """A program on another node, which reads from this one and whose output follows the start marker."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=self.errors)

    def write(self, block: bytes) -> None:
        """Write to its input unless it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(block)

    def finish(self) -> tuple[bytes, str]:
        """Close its input, wait for its end, and return its output and the last line of its errors."""
        output, _ = self.process.communicate()
        with self.errors:
            self.errors.seek(0)
            lines = self.errors.read().rpartition(START_MARKER)[2].decode(errors="replace").strip().splitlines()
        return output.rpartition(START_MARKER)[2], lines[-1] if lines else ""


class Child(RemoteProgram):
    """A run of this program on another node, which passes its input on to further nodes."""

    def __init__(self, config: str, nodes: Sequence[tuple[str, str]], head: dict[str, Any]) -> None:
        (self.name, command), *further_nodes = nodes
        self.further_nodes = [name for name, _ in further_nodes]
        super().__init__(["ssh", "-F", config, "--", self.name, command])
        self.write(head["source"].encode() + json.dumps({**head, "nodes": further_nodes}).encode() + b"\n")

    def end(self) -> dict[str, str | None]:
        """Close its input, and return why nodes have not got the pieces, by their names."""
        output, reason = self.finish()
        try:
            problems = json.loads(output.decode())
        except ValueError:
            reason = reason or f"its connection was lost (exit code {self.process.returncode})"
            return {**dict.fromkeys(self.further_nodes), self.name: reason}
        return {name or self.name: reason for name, reason in problems.items()}


def command(python: str, program: str = "") -> tuple[str, ...]:
    """Return the command that reads a program, by default this one, from the beginning of its input and runs it."""
    return (python, "-I", "-S", "-c", BOOTSTRAP.format(os.path.getsize(program or __file__)))


def beginning(head: dict[str, Any]) -> bytes:
    """Return the beginning of the input for command(): this program and the line of JSON."""
    with open(__file__, encoding="utf-8") as file:
        source = file.read()
    defaults = {"pieces": [], "receiver": [], "sender": [], "compressed": False, "stored": False, "source": source}
    return source.encode() + json.dumps({**defaults, **head}).encode() + b"\n"


def start_children(head: dict[str, Any]) -> list[Child]:
    """Start the program on two nodes, each with half of the others."""
    nodes = head["nodes"]
    middle = (len(nodes) + 1) // 2
    config = os.path.join(head["root"], "ssh", "config")
    return [Child(config, part, head) for part in (nodes[:middle], nodes[middle:]) if part]


def pass_on(blocks: Iterator[bytes], children: Sequence[Child]) -> Iterator[bytes]:
    """Yield the blocks of a stream, each after the other nodes have got it."""
    for block in blocks:
        for child in children:
            child.write(block)
        yield block


def stored_blocks(head: dict[str, Any]) -> Iterator[bytes]:
    """Yield the bytes of all pieces from this node's files, or those that its command prints."""
    if head["sender"]:
        yield from output(head["sender"])
    for piece in head["pieces"]:
        path = os.path.join(head["root"], piece["path"])
        part = part_path(path, piece["sha256"])
        remaining = piece["length"]
        with open(part if os.path.exists(part) else path, "rb") as file:
            file.seek(piece["offset"])
            while remaining:
                block = file.read(min(CHUNK, remaining))
                if not block:
                    raise ValueError(f"{path} has become shorter")
                yield block
                remaining -= len(block)


def output(command: Sequence[str], source: IO[bytes] | None = None) -> Iterator[bytes]:
    """Yield what a command prints while it reads a file; raise ValueError with its errors if it fails."""
    stdin = source or subprocess.DEVNULL
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdout is not None
            while block := process.stdout.read(CHUNK):
                yield block
        check_end(process, errors)


def feed(command: Sequence[str], blocks: Iterable[bytes]) -> None:
    """Let a command read all blocks, also if it has ended; raise ValueError with its errors if it fails."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)
        assert process.stdin is not None
        for block in blocks:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(block)
        process.communicate()
        check_end(process, errors)


def check_end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """Raise ValueError with a command's errors if it has failed."""
    if process.returncode != 0:
        errors.seek(0)
        raise ValueError(errors.read().decode(errors="replace").strip() or f"exit code {process.returncode}")


class Blocks:
    """A stream of blocks that is read in other parts."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks = blocks
        self.block = memoryview(b"")

    def parts(self, length: int) -> Iterator[memoryview]:
        """Yield the next `length` bytes.

        Raises:
            EOFError: if the stream has ended.
        """
        while length:
            if not self.block:
                block = next(self.blocks, None)
                if block is None:
                    raise EOFError("the transfer was interrupted")
                self.block = memoryview(block)
            part, self.block = self.block[:length], self.block[length:]
            length -= len(part)
            yield part


def write_pieces(blocks: Iterator[bytes], head: dict[str, Any]) -> None:
    """Write all pieces of a stream.

    Raises:
        EOFError: if it ends before.
        ValueError: if a file is damaged.
        OSError: if a file cannot be written.
    """
    source = Blocks(blocks)
    for piece in head["pieces"]:
        path = os.path.join(head["root"], piece["path"])
        part = part_path(path, piece["sha256"])
        mode = int(piece["mode"], 8)
        os.umask(0o022 if mode & stat.S_IROTH else 0o077)  # of the folder, which only those enter who read the file
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.exists(part) and has_content(path, piece["sha256"]):
            for _ in source.parts(piece["length"]):
                pass
            continue
        try:
            write_part(part, piece, source)
        except OSError:  # a full disk: what has arrived would keep it full
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise
        if piece["offset"] + piece["length"] == piece["size"]:
            complete(part, path, piece["sha256"], mode)


def part_path(path: str, sha256: str) -> str:
    """Return the file next to a path that collects its bytes; the hash keeps it from another version's."""
    return os.path.join(os.path.dirname(path), PART + sha256)


def write_part(part: str, piece: dict[str, Any], source: Blocks) -> None:
    """Append the bytes of a piece to a file, which has the bytes before them."""
    with open(part, "ab") as file:
        if os.fstat(file.fileno()).st_size < piece["offset"]:
            raise ValueError(f"{part} lacks bytes before {piece['offset']}")
        file.truncate(piece["offset"])
        file.writelines(source.parts(piece["length"]))


def complete(part: str, path: str, sha256: str, mode: int) -> None:
    """Check a file and give it its name; delete it if it is damaged."""
    if digest(part) != sha256:
        os.unlink(part)
        raise ValueError(f"{path} was damaged in the transfer")
    os.chmod(part, mode)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    os.replace(part, path)


def has_content(path: str, sha256: str) -> bool:
    """Return whether a file is complete."""
    return os.path.isfile(path) and not os.path.islink(path) and digest(path) == sha256


def digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as hexadecimal digits; raise OSError if it cannot be read."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            total.update(block)
    return total.hexdigest()


if __name__ == "__main__":
    main()
