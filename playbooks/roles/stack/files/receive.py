"""Write pieces of wheels from standard input to their places.

The first line of the input is JSON: the folder, and for each piece its part file, offset and length, and the name that
the part gets when this piece completes it. The bytes of all pieces follow. What has arrived before an interruption is
kept. Uses the standard library of Python 3.6 or newer only.
"""

import json
import os
import sys

CHUNK = 1 << 20


def main(stream):
    """Write all pieces of the stream."""
    head = json.loads(stream.readline().decode())
    os.umask(0o077)
    os.makedirs(head["folder"], exist_ok=True)
    for piece in head["pieces"]:
        part = os.path.join(head["folder"], piece["part"])
        complete_path = os.path.join(head["folder"], piece["whole"])
        if piece["offset"] and not os.path.exists(part) and os.path.isfile(complete_path):
            part = os.devnull  # sent again after an interruption, and complete since then
        write(stream, part, piece["offset"], piece["length"])
        if piece["whole"] and part != os.devnull:
            os.rename(part, complete_path)


def write(stream, path, offset, length):
    """Write the next bytes of the stream to a file, at an offset.

    Raises:
        EOFError: if the stream ends before.
    """
    with open(path, "ab") as file:
        if path != os.devnull:
            file.truncate(offset)
        while length:
            block = stream.read(min(CHUNK, length))
            if not block:
                raise EOFError(path + " is incomplete: the transfer was interrupted")
            file.write(block)
            length -= len(block)


if __name__ == "__main__":
    try:
        main(sys.stdin.buffer)
    except (EOFError, OSError) as error:
        while sys.stdin.buffer.read(CHUNK):
            pass  # if the input is not read, the sender reports a lost connection instead of this error
        sys.exit(str(error))
