"""Read the tracebacks in the output of a rank, and shorten them to the frames of the user's code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

HEADER = "Traceback (most recent call last):"
# The frames of a traceback, and of a stack trace of faulthandler, which has no comma before "in".
FRAME = re.compile(r'\s*File "(?P<path>[^"]*)", line (?P<line>\d+)(?:,? in (?P<function>.*)|$)')
IN_GROUP = re.compile(r"^\s*\| ")  # before each line of an exception in an ExceptionGroup
MARKERS = re.compile(r"[\s~^]*")
LIBRARY = re.compile(r"-packages/|^<|/lib/python3[^/]*/|/orch_node/|/train/node\.py$")
PACKAGE = re.compile(r"-packages/([^/]+)")
CURRENT_THREAD = re.compile(r"Current thread 0x[0-9a-f]+ .*\(most recent call first\):")
RUN_COPY = re.compile(r"^.*/\d{8}-\d{6}-[^/]+/project/")
MOST_FRAMES = 6  # of the user's code that are shown of one traceback
MOST_MESSAGE_LINES = 8
LONGEST_LINE = 400  # characters
DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a traceback.

    Attributes:
        path: the file.
        line: the number of the line.
        function: the function, or `<module>`.
        source: the line of code, or nothing.
    """

    path: str
    line: str
    function: str
    source: str = ""

    @property
    def is_library(self) -> bool:
        """Return whether the file belongs to Python, to an installed package or to orch."""
        return LIBRARY.search(self.path) is not None


@dataclass(slots=True)
class Traceback:
    """A traceback: its frames from the outermost to the innermost, and the lines of the exception."""

    frames: list[Frame] = field(default_factory=list)
    message: list[str] = field(default_factory=list)

    @property
    def user_frames(self) -> list[Frame]:
        """Return the frames of the user's code."""
        return [frame for frame in self.frames if not frame.is_library]


def parse_frame(line: str) -> Frame | None:
    """Return the frame in a line of a traceback, or None."""
    match = FRAME.match(line)
    return Frame(match["path"], match["line"], match["function"] or "") if match else None


def parse_last(text: str) -> Traceback | None:
    """Return the last traceback in a text, or None.

    Of chained exceptions, it is the one that ended the program.
    """
    _, header, last = text.rpartition(HEADER)
    if not header:
        return None
    traceback = Traceback()
    for line in (IN_GROUP.sub("", line) for line in last.splitlines()):
        frame = None if traceback.message else parse_frame(line)
        if frame:
            traceback.frames.append(frame)
        elif traceback.frames and not traceback.message and line[:1].isspace():
            last_frame = traceback.frames[-1]
            if not last_frame.source and not MARKERS.fullmatch(line):
                traceback.frames[-1] = replace(last_frame, source=line.strip())
        elif line.strip() or traceback.message:
            traceback.message.append(line)
    return traceback


def stack_of_signal(text: str) -> Traceback | None:
    """Return the stack that faulthandler has written on a fatal signal, or None."""
    _, *stacks = CURRENT_THREAD.split(text)
    frames: list[Frame] = []
    for frame in map(parse_frame, stacks[-1].splitlines()[1:] if stacks else ()):
        if frame is None:
            break
        frames.append(frame)
    return Traceback(frames[::-1]) if frames else None


def shorten(traceback: Traceback, folder: str) -> Iterator[str]:
    """Yield the lines of a traceback with the frames of libraries folded.

    Args:
        traceback: the traceback.
        folder: the folder of the user's code, to which paths below it are relative.
    """
    is_user = [not frame.is_library for frame in traceback.frames]
    omitted: list[Frame] = []
    for index, frame in enumerate(traceback.frames):
        if is_user[index] and not any(is_user[:index]):
            omitted = []  # of orch or of the launcher
        if not is_user[index] or sum(is_user[index:]) > MOST_FRAMES:
            omitted.append(frame)
            continue
        yield from describe_omitted(omitted)
        omitted = []
        yield f'File "{relative(frame.path, folder)}", line {frame.line}, in {frame.function}'
        if frame.source:
            yield f"  {frame.source}"
    yield from describe_omitted(omitted)
    lines = [line for line in traceback.message if line.strip()]
    for line in lines[:MOST_MESSAGE_LINES]:  # each cut to a length that a screen can show
        yield line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} [...]"
    if len(lines) > MOST_MESSAGE_LINES:
        yield f"... {len(lines) - MOST_MESSAGE_LINES} more lines"


def describe_omitted(frames: Sequence[Frame]) -> Iterator[str]:
    """Yield one line for frames that are not shown."""
    if frames:
        packages = dict.fromkeys(match[1] if (match := PACKAGE.search(frame.path)) else "" for frame in frames)
        names = ", ".join(filter(None, packages))
        yield f"... {len(frames)} frame{'s' * (len(frames) > 1)}{f' of {names}' if names else ''}"


def relative(path: str, folder: str) -> str:
    """Return a path relative to the run's copy of the project, or to the folder if it is below it."""
    path = RUN_COPY.sub("", path)
    return path.removeprefix(f"{folder.rstrip('/')}/") if folder else path


def summary(text: str, *, is_short: bool = False) -> str:
    """Return the exception of a traceback with the line of the user's code that led to it, or ''.

    Args:
        text: the text with the traceback.
        is_short: whether to name the file without its folder.
    """
    traceback = parse_last(text)
    if traceback is None or not traceback.message:
        return ""
    frame = next(iter(traceback.user_frames[::-1]), None)
    path = RUN_COPY.sub("", frame.path) if frame else ""
    location = f"{PurePath(path).name if is_short else path}, line {frame.line}: " if frame else ""
    return f"{location}{traceback.message[0][:LONGEST_LINE]}"


def error_key(text: str) -> str:
    """Return what identifies an error on several ranks: the exception without numbers, and the innermost frame."""
    traceback = parse_last(text)
    if traceback is None:
        return DIGITS.sub("#", text)
    lines = [f"{frame.path}:{frame.line}" for frame in traceback.user_frames[-1:]]
    return "\n".join([*lines, *(DIGITS.sub("#", line) for line in traceback.message[:1])])
