"""The charts, tables and the page that are made of a recorded run."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orch_node.protocol.events import Finished, Launched, Progress, render

from orchestrator.errors import ExecuteError
from orchestrator.report import charts, page, training
from orchestrator.report.charts import thin
from orchestrator.report.comparison import compare, figures, text
from orchestrator.report.page import PLOTLY, embedded
from orchestrator.report.training import error_lines
from orchestrator.runs import store as runs
from orchestrator.runs.measures import Measures, RankMeasures, Sample, measures
from orchestrator.runs.outcome import outcome_of
from orchestrator.runs.timeline import timeline_of
from tests.support.disks import small_file_system
from tests.support.recorded import PRECISION_EVENT, make_run, write_events
from tests.unit.runs.test_tracebacks import SHAPES


def measured(tmp_path: Path, **options: Any) -> Measures:
    make_run(tmp_path, "run", **options)
    return measures(runs.find(tmp_path, "run"))


def test_long_lines_are_thinned_to_means() -> None:
    points = thin([(float(x), 2.0 * x) for x in range(100_000)])
    assert len(points) <= 1000
    assert all(math.isclose(y, 2 * x) for x, y in points)


def test_rank_sums_up_its_samples() -> None:
    first = Sample(
        time=1, seconds=1, step=10, steps=10, step_seconds=0.1, samples_per_second=40, cpu_seconds=3, rss_bytes=5
    )
    second = replace(first, steps=30, step_seconds=0.2, samples_per_second=80, rss_bytes=9, loss=1.5)
    idle = Sample(time=3, seconds=8, step=40, steps=0, cpu_seconds=0)
    rank = RankMeasures(rank=0, node="n", threads=1, samples=(first, second, idle))
    assert rank.steps == 40
    assert rank.step_seconds == pytest.approx(0.175), "each step counts alike"
    assert rank.samples_per_second == pytest.approx(60), "while it trained"
    assert rank.steps_per_second == pytest.approx(20)
    assert (rank.peak_rss, rank.last_loss) == (9, 1.5)
    assert rank.cores_used == pytest.approx(0.6)
    nothing = RankMeasures(rank=1, node="n", threads=1, samples=())
    assert (nothing.steps, nothing.step_seconds, nothing.cores_used) == (0, None, None)


def test_charts_have_a_line_for_each_rank_or_the_median_and_the_slow_ones(tmp_path: Path) -> None:
    for ranks, straggler, names in (
        (1, None, ["rank 0 on node0"]),
        (2, 1, ["rank 0 on node0", "rank 1 on node0"]),  # two-ranks
        (16, 5, ["median of 16 ranks", "rank 5 on node0"]),  # many-ranks
    ):
        run_measures = measured(tmp_path / str(ranks), ranks=ranks, nodes=1, seconds=30, straggler=straggler)
        for chart in (charts.throughput_chart(run_measures), charts.memory_chart(run_measures)):
            assert [trace["name"] for trace in chart.data] == names
            hot = [trace["name"] for trace in chart.data if trace["marker"] == {"color": "--hot"}]
            assert hot == ([] if straggler is None else [f"rank {straggler} on node0"])
        note = "No rank holds" if straggler is None else f"Stragglers: rank {straggler} on node0 needs "
        assert charts.throughput_chart(run_measures).note.startswith(note)
        text = page.run_page(runs.find(tmp_path / str(ranks), "run"))
        marked = re.findall(r'<tr class="hot"><td class="left">(\d+)</td>', text)
        assert marked == ([] if straggler is None else [str(straggler)])


def test_other_values_are_gaps_and_text_cannot_end_the_data() -> None:
    result = embedded([math.nan, {"a": math.inf}, 1 / 3, "</script>&"])
    assert result == '[null,{"a":null},0.3333333,"\\u003c/script\\u003e\\u0026"]'


def test_plotting_library_is_the_published_one() -> None:
    """Compare the file with plotly.js-basic-dist-min of npm; CONTRIBUTING.md describes the update."""
    data = PLOTLY.read_bytes()
    assert b"plotly.js (basic - minified) v4.1.1" in data[:80]
    assert hashlib.sha256(data).hexdigest() == ("99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba")
    assert b"</script" not in data
    assert b"<!--" not in data


@pytest.mark.parametrize("delay", [0, 1])
def test_steps_longer_than_a_sample_have_their_own_rate(delay: int) -> None:
    """Spread a step of 2.5 s over its samples: 4 training samples in 2.5 s, not 0 or 4 per second.

    A script counts them after the step, which may be in the next sample.
    """
    ends = {3, 5, 8, 10, 13, 15}

    def sample(second: int) -> Sample:
        return Sample(
            time=second,
            seconds=1,
            step=second,
            steps=int(second in ends),
            step_seconds=2.5 if second in ends else None,
            samples_per_second=4.0 if second - delay in ends else None,
        )

    rank = RankMeasures(rank=0, node="n", threads=1, samples=tuple(map(sample, range(1, 17))))
    later = rank.stretches()[1:]
    assert [stretch.samples_per_second for stretch in later] == pytest.approx([1.6] * 5)
    assert [stretch.steps_per_second for stretch in later] == pytest.approx([0.4] * 5)


def test_start_of_a_later_attempt_does_not_count_as_training() -> None:
    first = [Sample(time=second, seconds=1, step=second, steps=10, samples_per_second=40) for second in (1, 2)]
    start = [Sample(time=second, seconds=1, step=0, steps=0) for second in (10, 11, 12)]
    rank = RankMeasures(rank=0, node="n", threads=1, samples=(*first, *start, replace(first[0], time=13)))
    assert (rank.samples_per_second, rank.steps_per_second) == (40, 10)


def test_small_differences_make_no_straggler() -> None:
    def rank(number: int, work: float) -> RankMeasures:
        sample = Sample(time=1, seconds=1, step=1, steps=10, step_seconds=0.1, work_seconds=work)
        return RankMeasures(rank=number, node="n", threads=1, samples=(sample,))

    assert charts.slow_ranks([rank(0, 0.001), rank(1, 0.003)]) == {}
    assert list(charts.slow_ranks([rank(0, 0.01), rank(1, 0.03)])) == [1]


def test_timeline_names_the_failed_rank_and_not_those_that_were_stopped(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", fails=3)
    write_events(folder, [{"event": "finished", "time": 1.0, "state": "refused"}], "a")
    run_measures = measures(runs.load(folder))
    descriptions = [moment.text for moment in timeline_of(run_measures.events)]
    assert "refused" not in descriptions, "another run was faster, and this one waited"
    assert descriptions[-1] == "rank 3 on node0 exited with code 1"
    assert sum("exited with" in line for line in descriptions) == 1
    assert "save" in [span.name for span in charts.phases(run_measures)]


def test_page_escapes_what_it_shows(tmp_path: Path) -> None:
    make_run(tmp_path, fails=1, recipe="<i>qa</i>")
    path = page.write(runs.find(tmp_path, "last"))
    assert path == tmp_path / "20260101-120000-qa-0000" / "report.html"
    text = path.read_text()
    assert "&lt;b&gt;boom&lt;/b&gt;" in text
    assert "<b>boom" not in text
    assert "<i>qa" not in text


def test_page_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    run, disk = runs.load(make_run(tmp_path, "run", ranks=1, nodes=1, seconds=5)), tmp_path / "disk"
    with small_file_system(disk, "64k"):
        with pytest.raises(ExecuteError, match="No space left"):
            page.write(run, disk / "page.html")
        assert list(disk.iterdir()) == []
    (tmp_path / "link").symlink_to("page.html")
    page.write(run, tmp_path / "link")
    assert (tmp_path / "page.html").stat().st_mode & 0o044, "as other files of the user"


def test_figures_of_the_page_are_those_of_the_end(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", ranks=256, seconds=20)
    write_events(folder, [{"event": "progress", "rank": 0, "time": 1.0, "step": 1000, "loss": math.nan}], "a")
    run = runs.load(folder)
    result = dict(figures(outcome_of(run), measures(run)))
    assert math.isnan(result["loss, last", ""])
    assert 10_000 < result["throughput", "samples/s"] < 10_500
    assert "nan" not in str(charts.loss_chart(measures(run)))


def test_runs_are_compared(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", settings={"learning_rate": 1e-4, "seed": 0}, precision="auto")
    write_events(folder, [PRECISION_EVENT], "a")
    make_run(tmp_path, "b", ranks=16, seconds=60, fails=2, settings={"seed": 0, "new": True}, precision="fp32")
    result = compare(runs.load(tmp_path / "a"), runs.load(tmp_path / "b"))
    assert (result["a"], result["b"], result["states"]) == ("a", "b", ["done", "failed"])
    assert result["differences"] == [
        {"name": "precision", "a": "bf16", "b": "fp32"},  # as the ranks have chosen it
        {"name": "ranks", "a": "8", "b": "16"},
        {"name": "set learning_rate", "a": "0.0001", "b": "-"},
        {"name": "set new", "a": "-", "b": "True"},
    ]
    figures = {(entry["name"], entry["unit"]): entry for entry in result["figures"]}
    assert figures["throughput", "samples/s"]["ratio"] == pytest.approx(2.0, rel=0.05)
    assert figures["loss at step 510", ""]["ratio"] == pytest.approx(1.0)
    assert figures["EM after", ""]["b"] is None
    assert "set learning_rate" in text(result)


def test_reports_have_the_number_of_ranks_that_ran(tmp_path: Path) -> None:
    for number, (sizes, ranks) in enumerate((((2, 1), "1 of 2 planned"), ((2, 2), "2"), ((), "2"), ((9,), "2"))):
        folder = make_run(tmp_path / str(number), "run", ranks=2, seconds=20)
        path = folder / "events.jsonl"
        nodes = tuple(f"node{index}" for index in range(9))
        launched = (Launched(attempt=attempt, ranks=size, nodes=nodes[:size]) for attempt, size in enumerate(sizes, 1))
        path.write_bytes(b"".join(map(render, launched)) + path.read_bytes())
        outcome = outcome_of(runs.load(folder))
        (row,) = [line for line in training.text(outcome).splitlines() if "Ranks" in line]
        assert row.split(None, 1)[1].strip() == ranks
        result = json.loads(training.as_json(outcome))
        assert (result["ranks"], result["planned_ranks"]) == (int(ranks[0]), 2)
        report = page.write(runs.load(folder)).read_text()
        assert ("1 rank of 2 planned on 1 node of 2" in report) == (sizes == (2, 1))


def test_duration_of_a_resumed_run_has_all_attempts_without_the_pauses(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", ranks=2, seconds=20)  # an attempt of 32 s
    started = runs.load(folder).outcome.started
    launched = (Launched(attempt=number, ranks=2, time=started - before) for number, before in ((1, 900), (2, 600)))
    ended = (Progress(rank=0, step=1, time=started - 890), Finished(state="stopped", time=started - 560))
    refused = Finished(state="refused", time=started - 50)
    first, second = zip(launched, ended, strict=True)
    path = folder / "events.jsonl"
    path.write_bytes(b"".join(map(render, (*first, *second, refused))) + path.read_bytes())
    assert outcome_of(runs.load(folder)).seconds == pytest.approx(32 + 10 + 40)


def test_table_has_names_and_units(tmp_path: Path) -> None:
    name = "20260101-120000-a-script-with-a-name-that-is-longer-than-any-table-0000"
    folder = make_run(tmp_path, name, ranks=2, seconds=20)
    scores = {
        "before": {"em": 2.5},
        "after": {"em": 81.25, "windows_per_second, int8": 40.0, "steps": 20, "loss": 0.00042},
    }
    write_events(
        folder,
        [{"event": "result", "rank": 0, "time": 40.0, "units": {"em": "%", "windows_per_second": None}, **scores}],
        "a",
    )
    lines = training.text(outcome_of(runs.find(tmp_path, name))).splitlines()
    assert lines[0] == "done: qa"
    assert f"files: {tmp_path}/{name}" in lines
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    assert ["Exact match", "2.50", "81.25", "%"] in cells
    assert ["Windows per second, int8", "-", "40.00"] in cells
    assert ["Steps", "-", "20"] in cells
    assert ["Loss", "-", "0.00042"] in cells
    assert ["Whole run", "32.0", "s"] in cells


def test_error_on_the_screen_is_repeated_with_its_line_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = SHAPES.replace("/home/me/net", str(tmp_path))
    assert list(error_lines(text, is_shown=True)) == [
        'File "train.py", line 4, in step',
        "  return model(x)",
        SHAPES.splitlines()[-1],
    ]
    assert len(list(error_lines(text))) == 6
    output = "\n".join(map(str, range(100)))  # without a traceback
    assert list(error_lines(output)) == [str(number) for number in range(75, 100)]
