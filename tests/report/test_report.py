"""The report of a run folder that the test writes, against numbers worked out by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from vipray.errors import ConfigError
from vipray.records import ALLOCATION_SCHEMA, EVALUATION_SCHEMA
from vipray.report import load_run, summary_table, write_report
from vipray.report.plots import allocation_svg, calibration_svg, reward_svg, time_split_svg
from vipray.report.statistics import calibration_bins, prediction_error, trailing_mean, wilson_interval
from vipray.report.summary import duration, headline, percent, prediction_scores

HOSTILE = "mul</text><script>alert(1)</script>[red]"

# step, prompt, task, predicted, n, successes, trials: one rollout of the last row timed out
ALLOCATIONS = [
    (0, "a0", "add", 0.5, 4, 1, 4),
    (0, "b0", HOSTILE, 0.24, 4, 1, 4),
    (1, "a0", "add", 0.3, 6, 3, 6),
    (1, "b1", HOSTILE, 0.2, 2, 0, 1),
]
EVALUATION = [(0, "a0", "add", 5, 10), (0, "b0", HOSTILE, 0, 10), (2, "a0", "add", 10, 10), (2, "b0", HOSTILE, 5, 10)]


def metrics_row(step: int, **changed: float) -> dict[str, Any]:
    row = {
        "step": step,
        "step/time_s": 10.0,
        "time/generation_s": 4.0,
        "time/training_s": 5.0,
        "time/publishing_s": 0.5,
        "time/loading_s": 0.0,
        "predictor/exposed_s": 0.1,
        "predictor/hidden_s": 0.02,
        "allocator/exposed_s": 0.05,
        "allocator/hidden_s": 0.01,
        "reward/mean": 0.25 + 0.25 * step,
        "engine/logprob_difference/mean": 0.01 + 0.02 * step,
        "rollouts/count": 8,
        "rollouts/tokens": 600,
        "groups/without_signal": step,
        "some/other/metric": 1.0,
    }
    return row | {name.replace("__", "/"): value for name, value in changed.items()}


def write_metrics(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_allocations(run_dir: Path, rows: list[tuple]) -> None:
    names = ("step", "prompt_id", "task", "success_prob", "n", "successes", "trials")
    fixed = {"gradient_variance": 0.5, "prompt_weight": 1.0}
    records = [dict(zip(names, row, strict=True)) | fixed for row in rows]
    pq.write_table(pa.Table.from_pylist(records, ALLOCATION_SCHEMA), run_dir / "allocations.parquet")


def write_evaluation(run_dir: Path, rows: list[tuple]) -> None:
    records = [dict(zip(EVALUATION_SCHEMA.names, row, strict=True)) for row in rows]
    pq.write_table(pa.Table.from_pylist(records, EVALUATION_SCHEMA), run_dir / "evaluation.parquet")


def make_run(path: Path) -> Path:
    path.mkdir()
    write_metrics(path, [metrics_row(0), metrics_row(1)])
    write_allocations(path, ALLOCATIONS)
    write_evaluation(path, EVALUATION)
    (path / "config.yaml").write_text("model:\n  path: </pre><b>bold</b>\n")
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(tmp_path / "tiny")


@pytest.fixture(scope="module")
def reported_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with its report, which takes a second or two to draw."""
    path = make_run(tmp_path_factory.mktemp("reported") / "tiny")
    write_report(path)
    return path


@pytest.fixture(scope="module")
def page(reported_dir: Path) -> Page:
    return Page((reported_dir / "report.html").read_text())


class Page(HTMLParser):
    """Cells of every table row, every tag, and every id of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._in_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def page_of(run_dir: Path) -> Page:
    return Page(write_report(run_dir).read_text())


def cells_of(run_dir: Path) -> list[list[str]]:
    table = summary_table(load_run(run_dir))
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def test_headline_table_holds_the_numbers_worked_out_by_hand(page):
    for expected in [
        ["Steps", "2"],
        ["Rollouts", "16"],
        ["Tokens in rollouts", "1,200"],
        ["Time of all steps", "20.0 s"],
        ["Mean reward, first 1 step → last 1 step", "0.25 → 0.50"],
        # 5 and 15 of 20: (p + z²/2t ± z √(p(1-p)/t + z²/4t²)) / (1 + z²/t)
        ["Evaluation, all tasks, before → after", "0.25 [0.11, 0.47] → 0.75 [0.53, 0.89]"],
        ["Groups without signal (all rewards equal)", "1 of 4 (25.0 %)"],
        ["Predictor and allocator exposed", "1.5 % of the steps' time (300 ms of 20.0 s)"],
        ["Engine/learner log-prob difference, mean", "0.02"],
        ["Batches that differ in size from their allocation", "none"],
    ]:
        assert expected in page.rows


def test_tables_by_task_hold_the_numbers_worked_out_by_hand(page):
    assert ["add", "1", "10", "62.5 %", "0.40", "0.25", "0.50"] in page.rows
    assert [HOSTILE, "2", "6", "37.5 %", "0.22", "0.25", "0.00"] in page.rows
    assert ["all tasks", "3", "16", "100.0 %", "0.31", "0.25", "0.25"] in page.rows
    assert ["add", "0.50 [0.24, 0.76]", "1.00 [0.72, 1.00]"] in page.rows
    assert [HOSTILE, "0.00 [0.00, 0.28]", "0.50 [0.24, 0.76]"] in page.rows


def test_prediction_table_compares_with_the_batch_mean(page, reported_dir):
    every, first, later = prediction_scores(load_run(reported_dir))
    assert every.predicted.mae == pytest.approx((0.25 + 0.01 + 0.2 + 0.2) / 4)
    assert every.constant.mae == pytest.approx((0 + 0 + (1 / 2 - 3 / 7) + 3 / 7) / 4)
    assert (first.predicted.num_visits, later.predicted.num_visits) == (3, 1)
    assert later.predicted.log_loss == pytest.approx(-0.5 * np.log(0.3 * 0.7))
    assert later.constant.log_loss == pytest.approx(-0.5 * np.log(3 / 7 * 4 / 7))
    assert ["later", "1", "0.200", "0.071", "0.780", "0.703"] in page.rows


def test_page_is_self_contained_and_its_plots_do_not_share_ids(page):
    assert page.tags.count("svg") == 4
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    links = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert {link[1:] for link in links if link.startswith("#")} <= set(page.ids)


def test_names_and_config_are_escaped(reported_dir):
    text = (reported_dir / "report.html").read_text()
    assert "<script" not in text
    assert "<b>bold" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "&lt;/pre&gt;&lt;b&gt;bold&lt;/b&gt;" in text


@pytest.mark.parametrize("task", ["cost $a$ and $b", "_hidden", "x" * 200])
def test_any_task_name_can_be_drawn(run_dir, task):
    write_allocations(run_dir, [(*row[:2], task, *row[3:]) for row in ALLOCATIONS])
    write_evaluation(run_dir, [(*row[:2], task, *row[3:]) for row in EVALUATION])
    run = load_run(run_dir)
    assert task[:20] in reward_svg(run)


def test_a_run_whose_allocations_have_no_shadow_columns_is_read_all_the_same(tmp_path):
    run_dir = make_run(tmp_path / "run")
    path, expected = run_dir / "allocations.parquet", load_run(run_dir).allocations
    table = pq.read_table(path)
    pq.write_table(table.drop_columns([name for name in table.column_names if name.startswith("n_")]), path)
    assert load_run(run_dir).allocations.n.tolist() == expected.n.tolist()


def test_report_is_written_again_to_the_same_bytes_and_leaves_nothing_else(reported_dir):
    first = (reported_dir / "report.html").read_bytes()
    assert write_report(reported_dir) == reported_dir / "report.html"
    assert (reported_dir / "report.html").read_bytes() == first
    inputs = {"metrics.jsonl", "allocations.parquet", "evaluation.parquet", "config.yaml"}
    assert {path.name for path in reported_dir.iterdir()} == inputs | {"report.html"}


def test_report_that_cannot_be_put_in_place_leaves_nothing_behind(run_dir):
    (run_dir / "report.html").mkdir()
    before = set(run_dir.iterdir())
    with pytest.raises(IsADirectoryError):
        write_report(run_dir)
    assert set(run_dir.iterdir()) == before


def test_summary_table_holds_the_numbers_worked_out_by_hand(run_dir):
    assert cells_of(run_dir) == [
        ["add", "1", "10", "62.5 %", "0.40", "0.25", "0.50", "0.50→1.00"],
        [HOSTILE, "2", "6", "37.5 %", "0.22", "0.25", "0.00", "0.00→0.50"],
        ["all tasks", "3", "16", "100.0 %", "0.31", "0.25", "0.25", "0.25→0.75"],
    ]


def test_summary_table_fits_a_terminal_of_80_characters(run_dir):
    write_allocations(run_dir, [(*row[:2], "prime_factorization", *row[3:]) for row in ALLOCATIONS])
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(summary_table(load_run(run_dir)))
    text = console.export_text()
    assert "…" not in text
    assert re.search(r"prime_factorization +3 +16 +100\.0 % +0\.31", text)


def test_run_without_a_finished_step(tmp_path):
    write_metrics(tmp_path, [])
    page = page_of(tmp_path)
    assert page.tags.count("svg") == 4
    assert ["Steps", "0"] in page.rows
    assert ["Mean reward", "-"] in page.rows
    assert cells_of(tmp_path) == [["all tasks", "0", "0", "-", "-", "-", "-", "-→-"]]


def test_run_with_one_step_and_no_optional_file(run_dir):
    write_metrics(run_dir, [metrics_row(0)])
    (run_dir / "evaluation.parquet").unlink()
    (run_dir / "config.yaml").unlink()
    page = page_of(run_dir)
    assert page.tags.count("svg") == 4
    assert ["Mean reward", "0.25"] in page.rows
    assert ["Evaluation, all tasks, before → after", "- → -"] in page.rows


def test_run_that_stopped_before_its_second_evaluation(run_dir):
    write_evaluation(run_dir, EVALUATION[:2])
    assert [row[-1] for row in cells_of(run_dir)] == ["0.50→-", "0.00→-", "0.25→-"]
    assert "Evaluation (before only)" in reward_svg(load_run(run_dir))


def test_half_written_last_line_is_skipped_wherever_it_was_cut(run_dir):
    whole = json.dumps(metrics_row(0)) + "\n"
    last = json.dumps(metrics_row(1) | {"note": "é"}, ensure_ascii=False).encode()
    for cut in [*range(1, len(last), 20), *range(len(last) - 4, len(last))]:
        (run_dir / "metrics.jsonl").write_bytes(whole.encode() + last[:cut])
        run = load_run(run_dir)
        assert (run.steps.step.tolist(), run.num_skipped_lines) == ([0], 1)
        assert run.allocations.step.tolist() == [0, 0]  # the step that never finished is left out
    assert headline(run)[-1] == ("Half-written lines of the metrics, skipped", "1")


def test_step_that_was_done_again_counts_as_last_written(run_dir):
    write_metrics(run_dir, [metrics_row(0), metrics_row(1, reward__mean=0.9), metrics_row(1, reward__mean=0.4)])
    write_allocations(run_dir, [*ALLOCATIONS, (1, "a0", "add", 0.35, 5, 2, 5)])
    run = load_run(run_dir)
    assert run.steps.reward_mean.tolist() == [0.25, 0.4]
    assert run.allocations.prompt_id.tolist() == ["a0", "b0", "b1", "a0"]
    assert run.allocations.n.sum() == 4 + 4 + 2 + 5


def test_batch_of_another_size_than_its_allocation_is_counted(run_dir):
    write_metrics(run_dir, [metrics_row(0), metrics_row(1, rollouts__count=7)])
    assert dict(headline(load_run(run_dir)))["Batches that differ in size from their allocation"] == "1 of 2"


def test_mean_over_nothing_is_null_in_json(run_dir):
    rows = [metrics_row(0), metrics_row(1) | {"reward/mean": None}]
    write_metrics(run_dir, rows)
    assert dict(headline(load_run(run_dir)))["Mean reward, first 1 step → last 1 step"] == "0.25 → -"
    assert reward_svg(load_run(run_dir)).startswith("<svg")


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: None], ids=["empty", "file", "missing"])
def test_what_is_no_run_folder_is_refused_in_one_line(tmp_path, make):
    path = tmp_path / "elsewhere"
    make(path)
    with pytest.raises(ConfigError, match=r"elsewhere is no run folder .*: name the output folder of a run$"):
        write_report(path)
    assert not (tmp_path / "elsewhere" / "report.html").exists()


def test_foreign_files_are_refused_by_name(run_dir):
    write_metrics(run_dir, [{"step": 0}])
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: a line has no 'step/time_s'"):
        load_run(run_dir)
    write_metrics(run_dir, [metrics_row(0) | {"reward/mean": "high"}])
    with pytest.raises(ConfigError, match="'reward/mean' must be a number, got 'high'"):
        load_run(run_dir)
    write_metrics(run_dir, [metrics_row(0)])
    (run_dir / "allocations.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"allocations\.parquet cannot be read"):
        load_run(run_dir)


def test_long_run_keeps_the_page_small(tmp_path):
    rng = np.random.default_rng(0)
    num_steps, batch = 400, 32
    write_metrics(tmp_path, [metrics_row(step) for step in range(num_steps)])
    prob = rng.uniform(size=(num_steps, batch))
    rows = [
        (step, f"q{q}", f"task {q % 3}", prob[step, q], 8, int(rng.binomial(8, prob[step, q])), 8)
        for step in range(num_steps)
        for q in range(batch)
    ]
    write_allocations(tmp_path, rows)
    assert write_report(tmp_path).stat().st_size < 3_000_000


def test_drawing_leaves_matplotlib_as_it_was(run_dir):
    import matplotlib

    before = dict(matplotlib.rcParams)
    run = load_run(run_dir)
    for draw in (reward_svg, calibration_svg, allocation_svg, time_split_svg):
        assert draw(run).startswith("<svg")
    assert dict(matplotlib.rcParams) == before


def test_importing_the_report_is_cheap():
    heavy = ["ray", "torch", "vllm", "matplotlib", "jinja2", "rich"]
    check = f"import sys, vipray.report; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_wilson_interval_holds_the_rate_and_mirrors():
    trials = np.array([1, 2, 7, 40, 1000])
    for share in (0.0, 0.3, 0.5, 1.0):
        rate = np.round(share * trials) / trials
        low, high = wilson_interval(rate, trials)
        assert np.all((low >= 0) & (low <= rate) & (rate <= high) & (high <= 1))
        mirrored_low, mirrored_high = wilson_interval(1 - rate, trials)
        np.testing.assert_allclose(mirrored_low, 1 - high, atol=1e-12)
        np.testing.assert_allclose(mirrored_high, 1 - low, atol=1e-12)


def test_log_loss_is_least_at_the_realised_rate():
    successes, trials = np.array([3, 9]), np.array([4, 16])
    losses = [prediction_error(np.full(2, p), successes, trials).log_loss for p in np.arange(1, 100) / 100]
    assert np.argmin(losses) + 1 == 60  # 12 of 20


def test_calibration_bins_cover_every_visit_and_widen_for_unequal_prompts():
    prob = np.array([0.0, 0.05, 0.55, 0.55, 1.0])
    trials = np.array([10, 10, 10, 10, 10])
    unequal = calibration_bins(prob, np.array([0, 1, 0, 10, 10]), trials)
    equal = calibration_bins(prob, np.array([0, 1, 5, 5, 10]), trials)
    assert [b.num_visits for b in unequal] == [2, 2, 1]
    assert unequal[1].rate == equal[1].rate == 0.5
    assert unequal[1].high - unequal[1].low > equal[1].high - equal[1].low


def test_trailing_mean_equals_the_definition():
    rng = np.random.default_rng(1)
    index, values = rng.integers(0, 12, 30), rng.normal(size=30)
    values[3] = np.nan
    for window in (1, 4):
        result = trailing_mean(index, values, 12, window)
        for step in range(12):
            inside = values[(index > step - window) & (index <= step) & ~np.isnan(values)]
            assert result[step] == pytest.approx(inside.mean() if len(inside) else np.nan, nan_ok=True)


def test_values_are_written_in_the_unit_that_suits_them():
    assert [duration(s) for s in (0.0, 0.0421, 61.04, 600.0, 7261.0, float("nan"))] == [
        *("0.0 s", "42 ms", "61.0 s", "10 min", "2 h 01 min", "-"),
    ]
    assert [percent(share) for share in (0.0, 0.00042, 0.5, 1.0)] == ["0.0 %", "0.04 %", "50.0 %", "100.0 %"]
