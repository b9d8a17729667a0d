"""Verification that hangs, crashes, or takes all memory costs one answer and one worker, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.verifiers.hostile import build
from vipray.data.prompts import Prompt
from vipray.errors import ConfigError, VerifierPoolError
from vipray.records import Outcome
from vipray.verifiers import workers
from vipray.verifiers.builder import VerifierBuilder
from vipray.verifiers.protocol import Score
from vipray.verifiers.worker import Worker
from vipray.verifiers.workers import VerifierPool

ROOT = Path(__file__).parents[2]
PROMPT = Prompt("p0", "task", 0, "?", "80", verifier="hostile", aliases=("eighty",))
MIB = 1 << 20


def make_pool(num_workers=1, answer_timeout_s=3.0, memory_mib=256, names=("hostile",)):
    return VerifierPool(build, names, num_workers=num_workers, answer_timeout_s=answer_timeout_s, memory_mib=memory_mib)


@pytest.fixture(scope="module")
def pool():
    with make_pool(num_workers=2, answer_timeout_s=20) as pool:
        yield pool


@pytest.fixture
def strict_pool():
    with make_pool() as pool:
        yield pool


def result(pool: VerifierPool, completion: str, prompt: Prompt = PROMPT) -> Score:
    return pool.submit(prompt, completion).result(timeout=60)


def alive(pids) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def wait_until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_scores_come_back_as_they_were_given(pool):
    assert result(pool, "80") == Score(1.0, Outcome.CORRECT, "80")
    assert result(pool, "81") == Score(0.0, Outcome.WRONG, "81")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=st.characters(codec=None), max_size=50))
def test_any_text_crosses_unchanged(pool, text):
    text = "echo\n" + text
    prompt = Prompt("p", "t", 0, text, text, verifier="hostile")
    assert result(pool, text, prompt) == Score(1.0, Outcome.CORRECT, text)


def test_many_answers_come_back_in_order(pool):
    answers = [(PROMPT, str(number)) for number in range(3000)]
    scores = list(pool.scores(iter(answers)))
    assert [score.extracted for score in scores] == [text for _, text in answers]
    assert [score.reward for score in scores].count(1.0) == 1


@pytest.mark.parametrize("completion", ["hang", "power", "deaf"])
def test_an_answer_that_hangs_is_a_timeout_and_the_next_ones_are_scored(strict_pool, completion):
    result(strict_pool, "80")
    start = time.monotonic()
    futures = [strict_pool.submit(PROMPT, text) for text in ("80", completion, "80", "7")]
    scores = [future.result(timeout=30) for future in futures]
    assert 3.0 <= time.monotonic() - start < 20.0
    assert [score.outcome for score in scores] == ["correct", "timeout", "correct", "wrong"]
    assert scores[1] == Score(0.0, Outcome.TIMEOUT, "", "no verdict within 3 s")
    assert strict_pool.metrics()["verifiers/timeout"] == strict_pool.metrics()["verifiers/workers_replaced"] == 1


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("exit 0", "the verifier crashed: its process ended with status 0"),
        ("exit 3", "the verifier crashed: its process ended with status 3"),
        ("kill 11", "the verifier crashed: its process was ended by SIGSEGV"),
        ("garbage", "the verifier crashed: its process sent something that is no score"),
        ("raise oh no", "ZeroDivisionError: oh no"),
        ("quit 0", "SystemExit: 0"),
        ("reward nan", "ValueError: a reward of nan, outside of [0, 1]"),
        ("reward 1.5", "ValueError: a reward of 1.5, outside of [0, 1]"),
        ("allocate 300", "MemoryError"),
    ],
)
def test_a_crash_is_an_error_of_its_answer_alone(strict_pool, completion, reason):
    futures = [strict_pool.submit(PROMPT, text) for text in ("80", completion, "80")]
    scores = [future.result(timeout=30) for future in futures]
    assert [score.outcome for score in scores] == ["correct", "error", "correct"]
    assert scores[1] == Score(0.0, Outcome.ERROR, "", reason)


def test_memory_is_limited_above_what_the_verifier_takes_anyway(strict_pool):
    assert result(strict_pool, "allocate 200").extracted == "200 MiB"
    assert result(strict_pool, "allocate 260").outcome == "error"
    first = int(result(strict_pool, "limit").extracted)
    assert 256 * MIB < first < 2048 * MIB


def test_a_worker_that_keeps_memory_is_replaced_after_its_score(strict_pool):
    first, second = (result(strict_pool, "hold 140").extracted for _ in range(2))
    assert first != second
    assert strict_pool.metrics()["verifiers/error"] == 0
    wait_until(lambda: strict_pool.metrics()["verifiers/workers_replaced"] == 2)


def test_a_copy_of_the_worker_does_not_answer_twice(strict_pool):
    scores = list(strict_pool.scores([(PROMPT, "copy 80"), (PROMPT, "1"), (PROMPT, "2")]))
    assert [score.extracted for score in scores] == ["80", "1", "2"]


def test_everything_that_a_hung_answer_started_ends_with_it(tmp_path):
    path = tmp_path / "pids"
    with make_pool(answer_timeout_s=3) as pool:
        assert result(pool, f"family {path}").outcome == "timeout"
    pids = [int(pid) for pid in Path(f"{path}.done").read_text().split()]
    assert len(pids) == 3 and not alive(pids)


def test_what_a_hung_answer_started_ends_even_where_it_kills_the_supervisor_first(tmp_path):
    path = tmp_path / "pid"
    with make_pool(answer_timeout_s=30) as pool:
        assert result(pool, f"orphan {path}").outcome == "error"
        assert result(pool, "80").outcome == "correct"
    wait_until(lambda: not alive([int(path.read_text())]))


def test_scores_that_an_answer_writes_itself_are_paid_to_nobody(strict_pool):
    scores = list(strict_pool.scores([(PROMPT, "7"), (PROMPT, "forge"), (PROMPT, "80"), (PROMPT, "7")]))
    assert [score.outcome for score in scores] == ["wrong", "error", "correct", "wrong"]
    assert "no score" in scores[1].reason


def test_a_machine_without_room_for_a_process_is_asked_again(monkeypatch):
    tries = []

    class Reluctant(Worker):
        def __init__(self, spec):
            tries.append(spec)
            if len(tries) < 3:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            super().__init__(spec)

    monkeypatch.setattr(workers, "Worker", Reluctant)
    monkeypatch.setattr(workers, "_START_PAUSE_S", 0.01)
    with make_pool() as pool:
        assert result(pool, "80").outcome == "correct"
    assert len(tries) == 3


def test_descriptors_do_not_leak_into_workers_or_out_of_the_pool(strict_pool):
    first = result(strict_pool, "descriptors").extracted
    ours = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert result(strict_pool, "exit 1").outcome == "error"
    assert result(strict_pool, "descriptors").extracted == first
    assert len(os.listdir("/proc/self/fd")) == ours


def test_waiting_in_the_queue_does_not_count():
    with make_pool(answer_timeout_s=2.0) as pool:
        scores = list(pool.scores([(PROMPT, "hang"), (PROMPT, "hang"), *[(PROMPT, "80")] * 200]))
    assert Counter(score.outcome for score in scores) == {"timeout": 2, "correct": 200}


def test_an_idle_worker_that_was_killed_is_replaced_without_a_loss(strict_pool):
    first = int(result(strict_pool, "pid").extracted)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not alive([first]))
    time.sleep(0.1)
    second = result(strict_pool, "pid")
    assert second.outcome == "wrong" and int(second.extracted) != first


def test_400_answers_with_three_that_hang_on_four_workers():
    completions = ["80" if number % 2 else "7" for number in range(400)]
    for index in (5, 6, 200):
        completions[index] = "power"
    with make_pool(num_workers=4, answer_timeout_s=3.0) as pool:
        start = time.monotonic()
        scores = list(pool.scores((PROMPT, completion) for completion in completions))
        assert time.monotonic() - start < 30
        assert [score.outcome for score in scores] == [
            {"80": "correct", "7": "wrong", "power": "timeout"}[completion] for completion in completions
        ]
        assert pool.metrics()["verifiers/timeout"] == 3
        wait_until(lambda: len(pool.worker_pids()) == len(alive(pool.worker_pids())) == 4)
        assert result(pool, "80").outcome == "correct"


def test_power_towers_among_real_answers_are_timeouts_and_the_others_are_right():
    towers = {40: "\\boxed{7^{7^{7^{7}}}}", 41: "\\boxed{(8^{9})!}", 300: "\\boxed{\\frac{3^{(3^{(3^{33})})}-1}{2}}"}
    texts = [towers.get(place, ("\\boxed{80}", "so it is \\boxed{\\frac{81}{1}}")[place % 2]) for place in range(400)]
    prompt = Prompt("p", "t", 0, "", "80", verifier="math")
    with VerifierPool(VerifierBuilder(), ("math",), num_workers=4, answer_timeout_s=5.0, memory_mib=1024) as pool:
        start = time.monotonic()
        scores = list(pool.scores((prompt, text) for text in texts))
        assert time.monotonic() - start < 30
        assert [place for place, score in enumerate(scores) if score.outcome == "timeout"] == sorted(towers)
        assert [score.reward for score in scores] == [float(text == "\\boxed{80}") for text in texts]
        assert pool.metrics()["verifiers/timeout"] == 3
        wait_until(lambda: len(alive(pool.worker_pids())) == 4, 30)


def test_threads_and_event_loops_share_a_pool_and_alarms_stay_the_callers(pool):
    alarms: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: alarms.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        scores: list[Score] = []
        threads = [threading.Thread(target=lambda: scores.append(result(pool, "80"))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        async def many() -> list[Score]:
            return await asyncio.gather(*(asyncio.wrap_future(pool.submit(PROMPT, "80")) for _ in range(200)))

        scores += asyncio.run(many())
        assert [score.outcome for score in scores] == ["correct"] * 220
        wait_until(lambda: bool(alarms))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_a_verifier_prints_does_not_reach_stdout(capfd):
    with make_pool() as pool:
        assert result(pool, "print between the lines").outcome == "wrong"
    out, err = capfd.readouterr()
    assert out == "" and "between the lines" in err


def test_a_verifier_that_cannot_be_built_is_refused():
    with make_pool(names=("unknown",)) as pool:
        with pytest.raises(ConfigError, match="unknown verifier 'unknown'"):
            pool.ready.result(timeout=60)
        with pytest.raises(ConfigError, match="unknown verifier 'unknown'"):
            result(pool, "80")


def test_workers_that_do_not_start_are_named():
    refused = pytest.raises(VerifierPoolError, match="does not start: its process ended with status 7")
    with make_pool(names=("dies",)) as pool, refused:
        pool.ready.result(timeout=60)


def test_closing_ends_a_hung_worker_and_refuses_what_is_left():
    pool = make_pool(answer_timeout_s=600)
    pool.ready.result(timeout=60)
    pids = pool.worker_pids()
    futures = [pool.submit(PROMPT, "deaf"), pool.submit(PROMPT, "80")]
    time.sleep(0.5)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5 and not alive(pids)
    for future in [*futures, pool.submit(PROMPT, "80")]:
        with pytest.raises(VerifierPoolError, match="closed"):
            future.result(timeout=5)


def test_workers_end_with_their_pools_process_even_when_it_is_killed(tmp_path):
    path = tmp_path / "pids"
    code = (
        "from tests.verifiers.test_workers import PROMPT, make_pool\n"
        "pool = make_pool(num_workers=2, answer_timeout_s=600)\n"
        f"futures = [pool.submit(PROMPT, 'family {path}'), pool.submit(PROMPT, 'power')]\n"
        "print(*pool.worker_pids(), flush=True) if pool.ready.result(60) is None else None\n"
        "futures[0].result()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        supervisors = [int(pid) for pid in process.stdout.readline().split()]
        wait_until(lambda: Path(f"{path}.done").exists(), 60)
        pids = [int(pid) for pid in Path(f"{path}.done").read_text().split()]
        assert supervisors and len(alive([*supervisors, *pids])) == len(supervisors) + 3
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not alive([*supervisors, *pids]))
