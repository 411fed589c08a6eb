"""Open the page of `orch report` in Chromium: it draws, is readable, and logs no errors."""

from __future__ import annotations

import base64
import hashlib
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

from orchestrator.report import page
from orchestrator.runs import store
from tests.support.recorded import make_run

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCHEMES = {"dark": "0", "light": "1"}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "eight ranks, one slow": ("light", 1300, {"straggler": 5}),
    "many ranks on a phone, one failed": ("dark", 400, {"ranks": 160, "nodes": 10, "straggler": 37, "fails": 12}),
}
# This script checks positions and colours on the drawn page. It runs under the page's content security policy, to
# which its hash is added.
INSPECT_SCRIPT = """
(() => {
  const luminance = text => {
    const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const inspect = () => {
    const result = {charts: 0, overlaps: [], outside: [], faint: [], empty: [], texts: [],
                   elements: document.querySelectorAll(".chart img, .chart a[href], h1 i").length};
    const background = getComputedStyle(document.body).backgroundColor;
    for (const chart of document.querySelectorAll(".chart")) {
      result.charts += 1;
      const title = chart.getAttribute("aria-label");
      if (!chart.querySelector(".js-line, .js-fill, .point path")) result.empty.push(title);
      const texts = [...chart.querySelectorAll("text")].filter(t => t.textContent.trim())
        .map(t => [t, t.getBoundingClientRect()]);
      texts.forEach(([text, box], index) => {
        const name = title + ": " + text.textContent;
        result.texts.push(text.textContent);
        if (box.left < 0 || box.right > innerWidth) result.outside.push(name);
        if (!text.matches(".bartext") && contrast(getComputedStyle(text).fill, background) < 4.5)
          result.faint.push(name);
        for (const [neighbour, area] of texts.slice(index + 1))
          if (box.left < area.right - 1 && area.left < box.right - 1
              && box.top < area.bottom - 1 && area.top < box.bottom - 1)
            result.overlaps.push(name + " / " + neighbour.textContent);
      });
    }
    result.buttons = [...document.querySelectorAll(".modebar-btn")].map(button => button.dataset.title);
    result.scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    result.width = innerWidth;
    result.overflow = document.documentElement.scrollWidth - innerWidth;
    return result;
  };
  const inspectWhenDrawn = async () => {
    while (!document.body.dataset.drawn) await new Promise(done => setTimeout(done, 20));
    const result = inspect();
    parent.postMessage(JSON.stringify(result), "*");
  };
  inspectWhenDrawn();
})();
"""
# A window has a minimum width, a frame has none.
FRAME = """<!doctype html><body style="margin:0">
<iframe src="{page}" style="border:0" width="{width}" height="2600"></iframe>
<script>addEventListener("message", event => {{
  const output = document.createElement("pre");
  output.id = "result";
  output.textContent = event.data;
  document.body.append(output);
}});</script>"""

Inspect = Callable[..., Any]


@pytest.fixture
def inspect_page(tmp_path: Path) -> Inspect:
    """Return a function that returns what INSPECT_SCRIPT finds on a page under its content security policy."""
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        pytest.fail("no Chromium: `make test` installs the Debian package where it may")
    options = ["--headless=new", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1300,2600"]
    if os.getuid() == 0:
        options.append("--no-sandbox")  # Chromium cannot sandbox root

    def inspect(page: Path, *, scheme: str = "light", width: int = 1300) -> Any:
        digest = base64.b64encode(hashlib.sha256(INSPECT_SCRIPT.encode()).digest()).decode()
        text = page.read_text()
        assert text.count("script-src ") == 1
        text = text.replace("script-src ", f"script-src 'sha256-{digest}' ")
        copy = page.with_name("inspected.html")
        copy.write_text(text.replace("</body>", f"<script>{INSPECT_SCRIPT}</script></body>"))
        frame = page.with_name("frame.html")
        frame.write_text(FRAME.format(page=copy.as_uri(), width=width))
        option = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
        command = [program, *options, option, "--virtual-time-budget=20000", "--dump-dom", frame.as_uri()]
        process = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert process.returncode == 0, process.stderr
        assert "CONSOLE" not in process.stderr, process.stderr
        match = re.search(r'<pre id="result">(.*?)</pre>', process.stdout, re.DOTALL)
        assert match, process.stderr
        return json.loads(unescape(match.group(1)))

    return inspect


def make_page(folder: Path) -> Path:
    """Write the page of the newest run in a folder."""
    return page.write(store.find(folder, "last"), folder / "page.html")


@pytest.mark.parametrize("case", CASES)
def test_page_of_a_run_is_readable(inspect_page: Inspect, tmp_path: Path, case: str) -> None:
    scheme, width, run = CASES[case]
    make_run(tmp_path, **run)
    page = make_page(tmp_path)
    result = inspect_page(page, scheme=scheme, width=width)
    assert result["charts"] >= 2
    assert (result["scheme"], result["width"]) == (scheme, width)
    for fault in ("overlaps", "outside", "faint", "empty"):
        assert result[fault] == [], fault
    assert result["overflow"] <= 0, "the page is wider than the window"
    assert not any("cloud" in title.lower() for title in result["buttons"])
    markup = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL)
    assert not re.search(r"""<[^>]* (src|href)=["'](?!data:)""", markup), "the page loads files"


def test_markup_from_a_node_stays_text(inspect_page: Inspect, tmp_path: Path) -> None:
    """Markup appears as text in a title, a legend, a bar and a table, although plotly interprets some tags."""
    markup = "</script><b>x</b><img src=x onerror=alert(1)><a href='javascript:alert(1)'>y</a>&lt;z"
    folder = make_run(tmp_path, recipe=f"<i>{markup}</i>", ranks=2, nodes=1, seconds=30)
    path = folder / "events.jsonl"
    path.write_text(path.read_text().replace('"phase": "train"', f'"phase": {json.dumps(markup)}'))
    plan = folder / "plan.json"
    plan.write_text(plan.read_text().replace('"node": "node0", "local', '"node": "<b>n", "local'))
    result = inspect_page(make_page(tmp_path))
    assert result["elements"] == 0
    assert "rank 0 on <b>n" in result["texts"]


def test_foreign_script_is_refused_and_logged(inspect_page: Inspect, tmp_path: Path) -> None:
    """Show that inspect_page() can fail."""
    make_run(tmp_path)
    page = make_page(tmp_path)
    text = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL)  # plotly takes seconds
    page.write_text(text.replace("</body>", "<script>nowhere()</script></body>"))
    with pytest.raises(AssertionError, match="Content Security Policy"):
        inspect_page(page)
