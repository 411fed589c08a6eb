"""Reads pieces of wheels from standard input; each byte is written once, where it belongs.

First a line of JSON: the folder, and for each piece the part file, the offset, the length, and the
name that the part takes when this piece completes it. Then the bytes, one piece after the other.
What has arrived before a connection breaks stays. Standard library only, Python 3.6 or newer.
"""

import json
import os
import sys

CHUNK = 1 << 20


def main(stream):
    given = json.loads(stream.readline().decode())
    os.umask(0o077)
    os.makedirs(given["folder"], exist_ok=True)
    for piece in given["pieces"]:
        part = os.path.join(given["folder"], piece["part"])
        whole = os.path.join(given["folder"], piece["whole"])
        if piece["offset"] and not os.path.exists(part) and os.path.isfile(whole):
            part = os.devnull  # sent again after a broken connection, and complete since then
        append(stream, part, piece["offset"], piece["length"])
        if piece["whole"] and part != os.devnull:
            os.rename(part, whole)


def append(stream, path, offset, left):
    with open(path, "ab") as file:
        if path != os.devnull:
            file.truncate(offset)
        while left:
            block = stream.read(min(CHUNK, left))
            if not block:
                raise EOFError(path + " arrived short")
            file.write(block)
            left -= len(block)


if __name__ == "__main__":
    try:
        main(sys.stdin.buffer)
    except (EOFError, OSError) as error:
        while sys.stdin.buffer.read(CHUNK):
            pass  # a sender that is cut off would report a lost connection instead of this
        sys.exit(str(error))
