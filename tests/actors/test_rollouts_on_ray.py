"""Rollouts on real Ray actors with scripted engines: what a killed process costs."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections import Counter
from typing import Any

import psutil
import pytest
import ray

from actors.generator import GeneratorActor
from actors.generator_pool import GeneratorPool, Publication, Replacements
from actors.health import HealthMonitor, Watched
from actors.rollouts import RolloutLimits, RolloutMaker
from actors.seat import Seat, Supervision
from actors.verifier import VerifierActor
from actors.verifiers import Verifiers
from tests.actors.fakes import EqualityVerifier, FakeLearner
from tests.actors.test_controller import PROMPTS
from vipray.dispatch.dispatcher import Dispatcher
from vipray.dispatch.restarts import RestartPolicy
from vipray.dispatch.staleness import StalenessPolicy
from vipray.errors import GeneratorsExhaustedError
from vipray.inference.scripted_engine import Script, ScriptedEngine
from vipray.records import Recovery, RolloutId

pytestmark = pytest.mark.ray

IDS = [RolloutId(0, prompt_id, k) for prompt_id in PROMPTS.prompt_ids[:4] for k in range(8)]
SCRIPT = Script(
    success_prob=dict.fromkeys(PROMPTS.prompt_ids, 0.5),
    answer={prompt_id: PROMPTS.prompt(prompt_id).answer for prompt_id in PROMPTS.prompt_ids},
    latency_s=lambda rollout_id: 0.2 * rollout_id.k,
)


@pytest.fixture(scope="module")
def local_ray():
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    yield
    ray.shutdown()


@pytest.fixture
async def pool(local_ray):
    generator = actor(GeneratorActor)
    *chunks, manifest = FakeLearner().publish(0)
    handles = {
        name: generator.options(num_cpus=0, max_concurrency=100).remote(name, engine, PROMPTS.table)
        for name in ("g0", "g1")
    }
    generators = GeneratorPool(handles, ray.kill, load_timeout_s=20)
    generators.publish(Publication(0, ray.put(manifest), [ray.put(chunk) for chunk in chunks]))
    await generators.settled()
    assert generators.versions == {"g0": 0, "g1": 0}
    yield generators
    for handle in handles.values():
        ray.kill(handle)


def actor(cls) -> Any:
    remote: Any = ray.remote
    return remote(concurrency_groups={"health": 1})(cls)


def engine(prompts):
    return ScriptedEngine(SCRIPT)


async def make(pool):
    verifier = actor(VerifierActor).options(num_cpus=0).remote(EqualityVerifier, PROMPTS.table)
    never = Supervision("verifier", "supervision.verifiers", RestartPolicy(0, 1.0, 0.0), 20, ray.kill, print)
    verifiers = Verifiers([Seat("verifier 0", verifier, lambda: None, never)], verdict_s=20, max_kills=3)
    dispatcher = Dispatcher(StalenessPolicy(0), max_rollouts=64, max_tokens=1e9)
    maker = RolloutMaker(pool, verifiers, dispatcher, RolloutLimits(20, 16), ray.cancel)
    maker.open(0, IDS, dict.fromkeys(PROMPTS.prompt_ids, 1.0))
    return await maker.finished(0)


async def pid_of(handle):
    return await handle.__ray_call__.remote(lambda _self: os.getpid())


async def kill(handle):
    os.kill(await pid_of(handle), signal.SIGKILL)


async def test_a_killed_generator_costs_only_what_it_had_not_finished(pool):
    making = asyncio.create_task(make(pool))
    await asyncio.sleep(0.8)
    await kill(pool.handles["g0"])
    batch = await making
    assert [verdict.rollout_id for verdict in batch.verdicts] == IDS
    rows = [row for reference in batch.references for row in (await reference).to_pylist()]
    assert [RolloutId(row["step"], row["prompt_id"], row["k"]) for row in rows] == IDS
    made = Counter(row["generator_id"] for row in rows)
    assert 0 < made["g0"] < 16 < made["g1"]  # what g0 had finished is kept
    assert batch.metrics["rollouts/reissued"] == 16 - made["g0"]
    assert list(pool.handles) == ["g1"]


async def test_a_generator_that_stands_still_is_found_and_its_process_ends(pool):
    def watched():
        return [Watched(name, handle, functools.partial(pool.lose, name)) for name, handle in pool.handles.items()]

    watching = asyncio.create_task(HealthMonitor(watched, interval_s=0.2, timeout_s=2.0).run())
    making = asyncio.create_task(make(pool))
    await asyncio.sleep(0.5)
    pid = await pid_of(pool.handles["g0"])
    os.kill(pid, signal.SIGSTOP)
    batch = await making
    watching.cancel()
    assert [verdict.rollout_id for verdict in batch.verdicts] == IDS
    assert list(pool.handles) == ["g1"]
    assert "g0 to say that it is there" in str(pool.last_error)
    process = psutil.Process(pid) if psutil.pid_exists(pid) else None
    assert process is None or psutil.wait_procs([process], timeout=60)[1] == []


async def test_the_last_generators_death_is_named(pool):
    making = asyncio.create_task(make(pool))
    await asyncio.sleep(0.5)
    await asyncio.gather(*(kill(handle) for handle in list(pool.handles.values())))
    with pytest.raises(GeneratorsExhaustedError, match=r"of 32 rollouts are still to be made; the last one: .*died"):
        await making


async def test_a_killed_generator_is_replaced_by_a_new_actor(local_ray):
    generator = actor(GeneratorActor)

    def start(name):
        options = generator.options(num_cpus=0, max_concurrency=100)
        return options.remote(name, engine, PROMPTS.table)

    said: list[str] = []
    recovered: list[Recovery] = []
    replacements = Replacements(start, RestartPolicy(1, 60.0, 0.1), 20, said.append, recovered.append)
    pool = GeneratorPool({"generator-0": start("generator-0")}, ray.kill, 20, replacements)
    *chunks, manifest = FakeLearner().publish(0)
    pool.publish(Publication(0, ray.put(manifest), [ray.put(chunk) for chunk in chunks]))
    await pool.settled()
    making = asyncio.create_task(make(pool))
    await asyncio.sleep(0.8)
    await kill(pool.handles["generator-0"])
    batch = await making
    rows = [row for reference in batch.references for row in (await reference).to_pylist()]
    made = Counter(row["generator_id"] for row in rows)
    assert made.keys() == {"generator-0", "generator-1"} and made.total() == len(IDS)
    assert batch.metrics["rollouts/reissued"] == made["generator-1"]
    assert "serves version 0" in said[-1]
    (recovery,) = recovered
    assert (recovery.kind, recovery.actor) == ("generator", "generator-0")
    assert recovery.num_reissued == made["generator-1"]
    assert recovery.serving_at_s is not None
    assert recovery.lost_at_s <= recovery.reissued_at_s < recovery.serving_at_s
    ray.kill(pool.handles["generator-1"])
