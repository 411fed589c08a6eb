"""For mkdocs: pages made from the code, and links to files that are not part of the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "train" / "lib")]

from docs.tools import commands, events  # noqa: E402  only found with the path above

PAGES = {"reference/cli.md": commands.page, "reference/events.md": events.page}
OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages that are made from the code."""
    for path, made in PAGES.items():
        files.append(File.generated(config, path, content=made()))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """A link out of docs/ becomes the file's name; raises PluginError if there is no such file."""
    folder = Path(page.file.src_uri).parent

    def named(match: re.Match[str]) -> str:
        path = (ROOT / "docs" / folder / match.group(2)).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return match.group(0)
        if not path.exists():
            raise PluginError(f"{page.file.src_uri}: there is no {match.group(2)}")
        name = path.relative_to(ROOT).as_posix()
        return f"`{name}`" if match.group(1) == name else f"{match.group(1)} (`{name}`)"

    return OUTSIDE.sub(named, text)
