"""Verification: answers a second, beside math-verify used as it comes, and what three answers that hang cost.

Answers are real where a folder with data is given (`--data`; models' solutions of GSM8K, golds of prompt files as
answers), else made up here. Workers are up before the clock starts. `math-verify` parses gold and answer and compares
them, one pair after the other in one process, with its own time limits.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from jobs.bench.measure import HOW_LIMITED, in_child
from jobs.bench.results import Benchmark, Comparison, Target
from vipray.data.prompts import Prompt
from vipray.errors import ConfigError
from vipray.records import Outcome
from vipray.verifiers.builder import VerifierBuilder
from vipray.verifiers.protocol import Score
from vipray.verifiers.workers import VerifierPool

NUM_GSM8K, NUM_MIXED, NUM_WITH_HANGS = 5000, 1000, 400
_CORES = 2
_HANGING = (7, 150, 151)  # places of the answers that hang
_HANG_WORKERS, _TIMEOUT_S = 4, 5.0
_LEAST_PER_S, _LEAST_RATIO, _LONGEST_S, _MOST_GROWTH_BYTES = 1000.0, 3.0, 30.0, 64e6
_SOLUTIONS = "gsm8k/example_model_solutions.jsonl"
_PROMPTS = ("pass_rates/one_shot_rlvr_prompts.parquet", "pass_rates/deepscaler_uniform.parquet")
_MADE_UP_GOLDS = (
    "\\frac{3}{4}", "2\\sqrt{3}", "(-\\infty, 3)", "x^2+1", "\\{1, 2\\}", "-0.25", "12\\pi", "45^\\circ", "1,024",
    "\\dfrac{7}{12}", "3x-y+13=0", "(2, -1)", "28\\%", "5\\text{ cm}", "2^{10}", "\\frac{\\sqrt{2}}{2}", "17", "-4",
)  # fmt: skip
Answer = tuple[str, str]  # gold, completion


def benchmark(
    data: Path | None = None,
    *,
    num_gsm8k: int = NUM_GSM8K,
    num_mixed: int = NUM_MIXED,
    hang_timeout_s: float = _TIMEOUT_S,
) -> Benchmark:
    """Measure all three on two cores; `data` is the folder with real answers.

    Raises:
        ConfigError: the folder lacks a file.
    """
    folder = None if data is None else str(_checked(data))
    gsm8k = in_child(measure_gsm8k, cores=_CORES, data=folder, limit=num_gsm8k)
    mixed = in_child(measure_mixed, cores=_CORES, data=folder, limit=num_mixed)
    hangs = in_child(measure_hangs, cores=_CORES, answer_timeout_s=hang_timeout_s)
    kind = "made-up" if data is None else "real"
    what_mixed = f"{mixed['num']} mixed answers ({kind})"
    what_hangs = f"{NUM_WITH_HANGS} answers, {len(_HANGING)} of them hang, {_HANG_WORKERS} workers"
    note = (
        f"{hangs['timeouts']} timeouts, {hangs['wrong_outcomes']} outcomes not as they should be, "
        f"{hangs['workers_alive']} workers alive afterwards, {hangs['growth_bytes'] / 1e6:+.0f} MB"
    )
    rows = (
        Comparison(f"{gsm8k['num']} GSM8K answers ({kind})", gsm8k["ours_s"], "math-verify", gsm8k["theirs_s"]),
        Comparison(what_mixed, mixed["ours_s"], "math-verify", mixed["theirs_s"]),
        Comparison(what_hangs, hangs["ours_s"], "one process", None, note=note),
    )
    growth = max(0.0, hangs["growth_bytes"])
    targets = (
        Target("GSM8K answers", _LEAST_PER_S, gsm8k["num"] / gsm8k["ours_s"], "per_s", at_least=True),
        Target("mixed answers, math-verify's time to ours", _LEAST_RATIO, rows[1].ratio or 0.0, "times", at_least=True),
        Target(what_hangs, _LONGEST_S, hangs["ours_s"]),
        Target("memory after answers that hang, above that before", _MOST_GROWTH_BYTES, growth, "bytes"),
    )
    title = f"Verification on {_CORES} cores with {_CORES} workers ({HOW_LIMITED})"
    return Benchmark(title, rows, targets, {"gsm8k": gsm8k, "mixed": mixed, "hangs": hangs})


def measure_gsm8k(data: str | None, limit: int) -> dict[str, Any]:
    """Seconds for answers to GSM8K, by the verifier `gsm8k` and by math-verify."""
    answers = list(gsm8k_answers(data))[:limit]
    return _beside_math_verify("gsm8k", answers)


def measure_mixed(data: str | None, limit: int) -> dict[str, Any]:
    """Seconds for a mix of word problems and expressions, by the verifier `math` and by math-verify."""
    rng = random.Random(0)
    words, golds = list(gsm8k_answers(data)), list(expression_golds(data))
    rng.shuffle(words)
    rng.shuffle(golds)
    answers = words[: limit // 2] + list(expression_answers(golds, rng, limit - limit // 2))
    rng.shuffle(answers)
    return _beside_math_verify("math", answers)


def measure_hangs(answer_timeout_s: float) -> dict[str, Any]:
    """Seconds, outcomes, workers and memory of a run in which some answers never end."""
    texts = [("80", "81")[place % 2] for place in range(NUM_WITH_HANGS)]
    for place in _HANGING:
        texts[place] = "hang"
    expected = {"80": Outcome.CORRECT, "81": Outcome.WRONG, "hang": Outcome.TIMEOUT}
    with VerifierPool(
        HangingVerifier, ("hanging",), num_workers=_HANG_WORKERS, answer_timeout_s=answer_timeout_s, memory_mib=1024
    ) as pool:
        _warm_up(pool, _HANG_WORKERS, [("80", "81")], "hanging")
        before = _memory_bytes()
        start = time.perf_counter()
        outcomes = [score.outcome for score in pool.scores((_prompt("80", "hanging"), text) for text in texts)]
        seconds = time.perf_counter() - start
        _warm_up(pool, _HANG_WORKERS, [("80", "81")], "hanging")
        counts = Counter(outcome == expected[text] for outcome, text in zip(outcomes, texts, strict=True))
        return {
            "ours_s": seconds,
            "timeouts": int(pool.metrics()["verifiers/timeout"]),
            "wrong_outcomes": counts[False],
            "workers_alive": sum(psutil.pid_exists(pid) for pid in pool.worker_pids()),
            "growth_bytes": _memory_bytes() - before,
        }


class HangingVerifier:
    """Compares texts, and never ends on one of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def verify(self, prompt: Prompt, completion: str) -> Score:
        """Score a completion, or work for ever on `hang`."""
        while completion == "hang":
            pass
        return Score.correct(completion) if completion == prompt.answer else Score.wrong(completion)

    def check_gold(self, prompt: Prompt) -> str | None:
        """Return None: every gold will do."""
        return None


def gsm8k_answers(data: str | None) -> Iterator[Answer]:
    """Golds and solutions of word problems; four models' solutions of each problem where there are data."""
    if data is None:
        rng = random.Random(1)
        for _ in range(NUM_GSM8K):
            a, b = rng.randrange(2, 90), rng.randrange(2, 90)
            result = a * b + rng.choice((0, 0, 1))
            yield str(a * b), f"There are {a} boxes of {b} pens each.\n{a} * {b} = <<{a}*{b}={a * b}>>\n#### {result:,}"
        return
    for line in (Path(data) / _SOLUTIONS).read_text().splitlines():
        problem = json.loads(line)
        gold = problem["ground_truth"].rpartition("A:")[2].strip()
        for model in ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"):
            yield gold, problem[model]["solution"]


def expression_golds(data: str | None) -> Iterator[str]:
    """Golds of mathematical problems."""
    if data is None:
        yield from _MADE_UP_GOLDS * 30
        return
    for name in _PROMPTS:
        for row in pq.read_table(Path(data) / name, columns=["reward_model"]).column("reward_model").to_pylist():
            yield str(row["ground_truth"])


def expression_answers(golds: Sequence[str], rng: random.Random, num: int) -> Iterator[Answer]:
    """Answers that box the gold, or, every third one, another problem's."""
    for place in range(num):
        gold = golds[place % len(golds)]
        given = rng.choice(golds) if place % 3 == 2 else gold
        yield gold, f"We simplify step by step and find that the answer is $\\boxed{{{given}}}$."


def _beside_math_verify(verifier: str, answers: Sequence[Answer]) -> dict[str, Any]:
    with VerifierPool(
        VerifierBuilder(), (verifier,), num_workers=_CORES, answer_timeout_s=_TIMEOUT_S, memory_mib=1024
    ) as pool:
        _warm_up(pool, _CORES, [("\\frac{1}{2}", "so \\boxed{\\frac{2}{4}}"), ("12", "#### 12")], verifier)
        start = time.perf_counter()
        scores = list(pool.scores((_prompt(gold, verifier), completion) for gold, completion in answers))
        ours_s = time.perf_counter() - start
    start = time.perf_counter()
    theirs = [_math_verify(*answer) for answer in answers]
    theirs_s = time.perf_counter() - start
    agree = sum((score.reward == 1.0) == right for score, right in zip(scores, theirs, strict=True))
    return {"num": len(answers), "ours_s": ours_s, "theirs_s": theirs_s, "agree": agree}


def _math_verify(gold: str, completion: str) -> bool:
    from math_verify import parse, verify

    return bool(verify(parse(f"\\boxed{{{gold}}}"), parse(completion)))


def _warm_up(pool: VerifierPool, num_workers: int, answers: Sequence[Answer], verifier: str) -> None:
    """Have every worker score something, once all are up."""
    pool.ready.result()
    while len(pool.worker_pids()) < num_workers:
        time.sleep(0.05)
    list(pool.scores((_prompt(gold, verifier), completion) for gold, completion in list(answers) * 50))


def _prompt(gold: str, verifier: str) -> Prompt:
    return Prompt("p", "bench", 0, "", gold, verifier=verifier)


def _memory_bytes() -> int:
    """Resident memory of this process and everything below it."""
    this = psutil.Process()
    return sum(process.memory_info().rss for process in (this, *this.children(recursive=True)))


def _checked(data: Path) -> Path:
    for name in (_SOLUTIONS, *_PROMPTS):
        if not (data / name).is_file():
            raise ConfigError(f"--data {data} lacks the file {name}")
    return data
