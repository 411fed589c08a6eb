"""The page of `orch report` in a real browser: it draws, complains of nothing and can be read."""

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
# Looks at the drawn page as a reader would: at places and colours on the screen; then toggles a
# line, zooms and exports. It runs under the page's own policy, to which its hash is added.
LOOK = """
(() => {
  const level = text => {
    const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [level(a), level(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const look = () => {
    const found = {charts: 0, overlaps: [], outside: [], faint: [], empty: [], texts: [],
                   elements: document.querySelectorAll(".chart img, .chart a[href], h1 i").length};
    const paper = getComputedStyle(document.body).backgroundColor;
    for (const chart of document.querySelectorAll(".chart")) {
      found.charts += 1;
      const title = chart.getAttribute("aria-label");
      if (!chart.querySelector(".js-line, .js-fill, .point path")) found.empty.push(title);
      const texts = [...chart.querySelectorAll("text")].filter(t => t.textContent.trim())
        .map(t => [t, t.getBoundingClientRect()]);
      texts.forEach(([text, box], index) => {
        const name = title + ": " + text.textContent;
        found.texts.push(text.textContent);
        if (box.left < 0 || box.right > innerWidth) found.outside.push(name);
        if (!text.matches(".bartext") && contrast(getComputedStyle(text).fill, paper) < 4.5)
          found.faint.push(name);
        for (const [other, at] of texts.slice(index + 1))
          if (box.left < at.right - 1 && at.left < box.right - 1
              && box.top < at.bottom - 1 && at.top < box.bottom - 1)
            found.overlaps.push(name + " / " + other.textContent);
      });
    }
    found.scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    found.width = innerWidth;
    found.wide = document.documentElement.scrollWidth - innerWidth;
    return found;
  };
  const act = async () => {
    const chart = document.querySelector(".chart");
    const shown = () => chart.querySelectorAll(".scatterlayer .trace").length;
    const before = shown();
    const click = type => new MouseEvent(type, {bubbles: true, view: window});
    const toggles = chart.querySelectorAll(".legendtoggle");
    if (toggles.length) for (const type of ["mousedown", "mouseup"])
      toggles[toggles.length - 1].dispatchEvent(click(type));
    await new Promise(done => setTimeout(done, 1000));
    const toggled = before - shown();
    await Plotly.relayout(chart, {"xaxis.range": [1, 2]});
    return {legend: toggles.length > 0, toggled, zoomed: chart.layout.xaxis.range, buttons:
            [...chart.querySelectorAll(".modebar-btn")].map(b => b.dataset.title),
            picture: (await Plotly.toImage(chart)).slice(0, 22)};
  };
  const drawn = async () => {
    while (!document.body.dataset.drawn) await new Promise(done => setTimeout(done, 20));
    const found = look();
    if (found.charts) Object.assign(found, await act());
    parent.postMessage(JSON.stringify(found), "*");
  };
  drawn();
})();
"""
# A window has a least width, a frame has none.
FRAME = """<!doctype html><body style="margin:0">
<iframe src="{page}" style="border:0" width="{width}" height="2600"></iframe>
<script>addEventListener("message", event => {{
  const note = document.createElement("pre");
  note.id = "seen";
  note.textContent = event.data;
  document.body.append(note);
}});</script>"""

Browser = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if program is None:
        pytest.fail("no Chromium: `make test` installs the Debian package where it may")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []  # it refuses to sandbox root
        command = [
            program,
            "--headless=new",
            *sandbox,
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1300,2600",
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    return run


def made(folder: Path, *names: str) -> Path:
    """The page of the newest of the runs in `folder`, or of those named."""
    return report(folder, names or ["last"], inventory=None, output=folder / "page.html", tell=print)


def looked_at(browser: Browser, page: Path, *, scheme: str = "light", width: int = 1300) -> Any:
    """What LOOK has found, of the page under its own policy."""
    digest = base64.b64encode(hashlib.sha256(LOOK.encode()).digest()).decode()
    text = page.read_text()
    assert text.count("script-src ") == 1
    text = text.replace("script-src ", f"script-src 'sha256-{digest}' ")
    copy = page.with_name("looked-at.html")
    copy.write_text(text.replace("</body>", f"<script>{LOOK}</script></body>"))
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(page=copy.as_uri(), width=width))
    option = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    done = browser(option, "--virtual-time-budget=20000", "--dump-dom", frame.as_uri())
    assert "CONSOLE" not in done.stderr, done.stderr
    match = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr
    return json.loads(unescape(match.group(1)))


def check(seen: Any, scheme: str, width: int) -> None:
    assert seen["charts"] >= 2
    assert (seen["scheme"], seen["width"]) == (scheme, width)
    for fault in ("overlaps", "outside", "faint", "empty"):
        assert seen[fault] == [], fault
    assert seen["wide"] <= 0, "nothing sticks out of the page"
    assert seen["toggled"] == seen["legend"], "a click in the legend takes a line away"
    assert seen["zoomed"] == [1, 2]
    assert seen["picture"].startswith("data:image/png;base64,")
    assert not any("cloud" in title.lower() for title in seen["buttons"])


@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 400)])
@pytest.mark.parametrize("case", CASES)
def test_it_can_be_read(browser: Browser, tmp_path: Path, case: str, scheme: str, width: int) -> None:
    make_run(tmp_path, **CASES[case])
    check(looked_at(browser, made(tmp_path), scheme=scheme, width=width), scheme, width)


def test_several_runs_can_be_read(browser: Browser, tmp_path: Path) -> None:
    for ranks in (2, 4, 8):
        make_run(tmp_path, f"20260101-120000-qa-000{ranks}", ranks=ranks, seconds=30)
    names = sorted(path.name for path in tmp_path.iterdir())
    seen = looked_at(browser, made(tmp_path, *names), width=400)
    assert seen["charts"] == 3
    check(seen, "light", 400)


def test_what_a_node_sends_stays_text(browser: Browser, tmp_path: Path) -> None:
    """In a title, a legend, a bar and a table; plotly knows tags of its own."""
    evil = "</script><b>x</b><img src=x onerror=alert(1)><a href='javascript:alert(1)'>y</a>&lt;z"
    folder = make_run(tmp_path, recipe=f"<i>{evil}</i>", ranks=2, nodes=1, seconds=30)
    path = folder / "events.jsonl"
    path.write_text(path.read_text().replace('"phase": "train"', f'"phase": {json.dumps(evil)}'))
    plan = folder / "plan.json"
    plan.write_text(plan.read_text().replace('"node": "node0", "local', '"node": "<b>n", "local'))
    seen = looked_at(browser, made(tmp_path))
    assert seen["elements"] == 0
    assert "rank 0 on <b>n" in seen["texts"]


def test_it_needs_nothing_else_and_complains_of_nothing(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path, straggler=5)
    page = made(tmp_path)
    picture = tmp_path / "page.png"
    done = browser("--virtual-time-budget=5000", f"--screenshot={picture}", page.as_uri())
    assert "CONSOLE" not in done.stderr, "not even a refused request"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000, "an empty page compresses to almost nothing"
    assert not re.search(r"""<[^>]* (src|href)=["'](?!data:)""", outside_scripts(page))


def outside_scripts(page: Path) -> str:
    return re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL)


def test_the_browser_would_complain(browser: Browser, tmp_path: Path) -> None:
    """The test above can fail: a script that is not the page's own does not run, and is told."""
    make_run(tmp_path)
    page = made(tmp_path)
    page.write_text(page.read_text().replace("</body>", "<script>nowhere()</script></body>"))
    done = browser(f"--screenshot={tmp_path / 'page.png'}", page.as_uri())
    assert "CONSOLE" in done.stderr
    assert "Content Security Policy" in done.stderr
