"""The page of `orch report` in a real browser: it draws, complains of nothing and can be read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from orchestrator.operations.report import report
from tests.recorded import make_run

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCHEMES = {"dark": "0", "light": "1"}
CASES: dict[str, dict[str, Any]] = {
    "eight ranks, one slow": {"straggler": 5},
    "many ranks, one failed": {"ranks": 64, "nodes": 16, "straggler": 37, "fails": 12},
    "more ranks than have room": {"ranks": 160, "nodes": 10, "straggler": 150, "seconds": 30},
    "one rank": {"ranks": 1, "nodes": 1, "seconds": 12},
    "before the first step": {"ranks": 2, "nodes": 1, "seconds": 6},
    "some hours": {"ranks": 2, "nodes": 1, "seconds": 20_000},
}
# Looks at the drawn page as a reader would: at places and colours on the screen.
LOOK = """
<script>
addEventListener("load", () => {
  const found = {charts: 0, overlaps: [], outside: [], faint: [], empty: []};
  const level = text => {
    const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [level(a), level(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  for (const svg of document.querySelectorAll("svg")) {
    found.charts += 1;
    const chart = svg.getAttribute("aria-label");
    if (!svg.querySelector("rect, path")) found.empty.push(chart);
    const texts = [...svg.querySelectorAll("text")].map(t => [t, t.getBoundingClientRect()]);
    texts.forEach(([text, box], index) => {
      const name = chart + ": " + text.textContent;
      if (box.left < 0 || box.right > innerWidth) found.outside.push(name);
      const ink = getComputedStyle(text).fill;
      if (!text.matches(".inside") && contrast(ink, paper) < 4.5) found.faint.push(name);
      for (const [other, at] of texts.slice(index + 1))
        if (box.left < at.right && at.left < box.right
            && box.top < at.bottom && at.top < box.bottom)
          found.overlaps.push(name + " / " + other.textContent);
    });
  }
  found.scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  found.wide = document.documentElement.scrollWidth - innerWidth;
  const note = document.createElement("pre");
  note.id = "seen";
  note.textContent = JSON.stringify(found);
  document.body.append(note);
});
</script>
"""

Browser = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        pytest.fail("no Chromium: `make test` installs the Debian package where it may")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []  # it refuses to sandbox root
        command = [program, "--headless=new", *sandbox, "--disable-gpu", "--hide-scrollbars",
                   "--disable-dev-shm-usage", "--no-first-run", "--enable-logging=stderr",
                   f"--user-data-dir={tmp_path / 'profile'}", "--window-size=960,1400",
                   *arguments]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("case", CASES)
def test_it_can_be_read(browser: Browser, tmp_path: Path, case: str, scheme: str) -> None:
    make_run(tmp_path / "runs", **CASES[case])
    page = report(
        tmp_path / "runs", "last", inventory=None, output=tmp_path / "page.html", tell=print
    )
    text = page.read_text()
    assert "NaN" not in text
    copy = page.with_name("looked-at.html")
    without_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    copy.write_text(without_policy.replace("</body>", LOOK + "</body>"))
    option = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    done = browser(option, "--virtual-time-budget=3000", "--dump-dom", copy.as_uri())
    match = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr
    seen = json.loads(unescape(match.group(1)))
    assert seen["charts"] == text.count("<svg") >= 2
    assert seen["scheme"] == scheme
    assert seen["overlaps"] == []
    assert seen["outside"] == []
    assert seen["faint"] == []
    assert seen["empty"] == []
    assert seen["wide"] <= 0, "nothing sticks out of the page"


def test_it_needs_nothing_else_and_complains_of_nothing(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "runs", straggler=5)
    page = report(
        tmp_path / "runs", "last", inventory=None, output=tmp_path / "page.html", tell=print
    )
    picture = tmp_path / "page.png"
    done = browser(f"--screenshot={picture}", page.as_uri())
    assert "CONSOLE" not in done.stderr, "not even a refused request"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000, "an empty page compresses to almost nothing"
    assert not re.search(r"""(src|href)=["'](?!data:)""", page.read_text())


def test_the_browser_would_complain(browser: Browser, tmp_path: Path) -> None:
    """The test above can fail: a page that asks for more is told off in the console."""
    make_run(tmp_path / "runs")
    page = report(
        tmp_path / "runs", "last", inventory=None, output=tmp_path / "page.html", tell=print
    )
    page.write_text(page.read_text().replace("</body>", "<script>nowhere()</script></body>"))
    done = browser(f"--screenshot={tmp_path / 'page.png'}", page.as_uri())
    assert "CONSOLE" in done.stderr
