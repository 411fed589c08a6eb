"""Add the generated page of commands to the site of mkdocs, and show links to files outside of it as file names."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "train" / "lib")]

from docs.tools import commands  # noqa: E402  needs the path above

PAGES = {"reference/cli.md": commands.page}
RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages that are generated from the code."""
    for path, generate in PAGES.items():
        files.append(File.generated(config, path, content=generate()))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Replace links that lead out of docs/ by the name of the file.

    Raises:
        PluginError: if there is no such file.
    """
    folder = Path(page.file.src_uri).parent

    def link_or_name(match: re.Match[str]) -> str:
        path = (ROOT / "docs" / folder / match.group(2)).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return match.group(0)
        if not path.exists():
            raise PluginError(f"{page.file.src_uri}: there is no {match.group(2)}")
        name = path.relative_to(ROOT).as_posix()
        return f"`{name}`" if match.group(1) == name else f"{match.group(1)} (`{name}`)"

    return RELATIVE_LINK.sub(link_or_name, text)
