from __future__ import annotations

import json
from functools import cache

import pytest

from vipray.config import load_config
from vipray.errors import ConfigError
from vipray.resume import ACCEPTABLE, changed_parts, check_resumable, facts

DATA = "0123456789abcdef"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Makes a configuration from overrides, each once."""
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    path.write_text("model: {path: m.gguf}\npredictor: {embedding_model: e}\ndata: {files: {f: {path: x.jsonl}}}\n")
    return cache(lambda *overrides: load_config(path, overrides))


def saved(config, fingerprint=DATA):
    """Facts as they come out of a manifest."""
    return json.loads(json.dumps(facts(config, fingerprint)))


REFUSED = [
    ("model.path=other", "model", "model.path: m.gguf then, other now"),
    ("learner.lora.rank=8", "model", "learner.lora.rank: 0 then, 8 now"),
    ("learner.lora.alpha=8", "model", "learner.lora.alpha: 32 then, 8 now"),
    ("learner.lora.target_modules=[q_proj]", "model", r"learner.lora.target_modules: [] then, ['q_proj'] now"),
    ("allocation.policy=uniform", "batch", "allocation.policy: vip then, uniform now"),
    ("allocation.objective=log_success", "batch", "allocation.objective: mean_success then, log_success now"),
    ("allocation.pass_k=4", "batch", "allocation.pass_k: 8 then, 4 now"),
    ("allocation.estimator=dr_grpo", "batch", "allocation.estimator: rloo then, dr_grpo now"),
    ("allocation.prompts_per_batch=9", "batch", "allocation.prompts_per_batch: 8 then, 9 now"),
    ("allocation.rollout_budget=65", "batch", "allocation.rollout_budget: 64 then, 65 now"),
    ("allocation.lower=4", "batch", "allocation.lower: 3 then, 4 now"),
    ("allocation.upper=25", "batch", "allocation.upper: 24 then, 25 now"),
    ("learner.estimator=rloo", "batch", "learner.estimator: null then, rloo now"),
    ("sampling.max_tokens=32", "batch", "sampling.max_tokens: 16 then, 32 now"),
    ("sampling.temperature=0.5", "batch", "sampling.temperature: 1.0 then, 0.5 now"),
    ("predictor.kind=beta", "predictor", "predictor.kind: hybrid then, beta now"),
    ("predictor.embedding_model=e2", "predictor", "predictor.embedding_model: e then, e2 now"),
    ("predictor.strip_prefix=Solve", "predictor", "predictor.strip_prefix: '' then, Solve now"),
    ("predictor.num_inducing=128", "predictor", "predictor.num_inducing: 256 then, 128 now"),
    ("run.seed=1", "seed", "run.seed: 0 then, 1 now"),
]


def test_the_same_run_goes_on_without_a_word(config):
    assert check_resumable(saved(config()), config(), DATA) == []
    assert changed_parts(saved(config()), config(), DATA) == frozenset()


@pytest.mark.parametrize(("override", "part", "difference"), REFUSED)
def test_what_must_not_change_is_refused_by_name_unless_it_is_accepted(config, override, part, difference):
    now = config(override)
    with pytest.raises(ConfigError) as refusal:
        check_resumable(saved(config()), now, DATA, [other for other in ACCEPTABLE if other != part])
    message = str(refusal.value)
    assert difference in message and f"accept it with --accept-changed {part} (" in message and "\n" not in message
    (line,) = check_resumable(saved(config()), now, DATA, [part])
    assert line.startswith(f"{difference} (accepted, ")
    assert changed_parts(saved(config()), now, DATA) == {part}


def test_other_data_are_refused_unless_they_are_accepted(config):
    with pytest.raises(
        ConfigError, match=r"data: fingerprint 0123456789ab then, fedcba now: .* --accept-changed data \("
    ):
        check_resumable(saved(config()), config(), "fedcba")
    (line,) = check_resumable(saved(config()), config(), "fedcba", ["data"])
    assert "fedcba now (accepted, the predictor starts from its prior" in line
    assert changed_parts(saved(config()), config(), "fedcba") == {"data"}


def test_every_difference_and_every_option_is_named_at_once(config):
    now = config("model.path=other", "allocation.lower=4", "allocation.upper=25", "learner.learning_rate=2e-5")
    with pytest.raises(ConfigError) as refusal:
        check_resumable(saved(config()), now, DATA)
    message = str(refusal.value)
    for difference in ("model.path: m.gguf then, other now", "allocation.lower: 3 then, 4 now", "allocation.upper: 24"):
        assert difference in message
    assert "--accept-changed model --accept-changed batch (" in message and "learning_rate" not in message


def test_other_settings_are_told_and_stop_nothing(config):
    now = config("learner.learning_rate=2e-5", "pipeline.max_staleness=1", "data.files.g.path=y.jsonl")
    lines = check_resumable(saved(config()), now, DATA)
    assert "learner.learning_rate: 1e-05 then, 2e-05 now" in lines
    assert "pipeline.max_staleness: 0 then, 1 now" in lines
    assert "data.files.g.path: null then, y.jsonl now" in lines
    assert changed_parts(saved(config()), now, DATA) == frozenset()


def test_the_machines_and_folders_of_a_run_are_its_own_business(config):
    now = config(
        "run.name=again",
        "run.steps=99",
        "run.output_root=elsewhere",
        "ray.object_store_mib=100",
        "generators.count=5",
        "verifiers.count=5",
        "supervision.max_kills=1",
        "supervision.generators.max_restarts=1",
        "checkpoints.every_steps=7",
        "model.cache_dir=x",
        "predictor.cache_dir=x",
    )
    assert check_resumable(saved(config()), now, DATA) == []


def test_a_setting_of_a_predictor_counts_where_its_state_hangs_on_it(config):
    beta = config("predictor.kind=beta")
    lines = check_resumable(saved(beta), config("predictor.kind=beta", "predictor.num_inducing=8"), DATA)
    assert lines == ["predictor.num_inducing: 256 then, 8 now"]
    average = ("predictor.kind=moving_average",)
    with pytest.raises(ConfigError, match=r"predictor\.history\.window: 8 then, 4 now: .*--accept-changed predictor"):
        check_resumable(saved(config(*average)), config(*average, "predictor.history.window=4"), DATA)


@pytest.mark.parametrize(
    ("manifest", "what"), [({}, "holds no state of a run"), ({"state_version": 0}, "the state of a run in version 0")]
)
def test_state_of_another_version_is_accepted_by_nothing(config, manifest, what):
    with pytest.raises(ConfigError, match=rf"{what}, .*checkpoints\.load=FOLDER .*weights and optimiser alone"):
        check_resumable(manifest, config(), DATA, ACCEPTABLE)
    with pytest.raises(ConfigError, match=what):
        changed_parts(manifest, config(), DATA)


def test_what_is_accepted_must_be_something_that_can_be(config):
    with pytest.raises(ConfigError, match="--accept-changed weather is not one of model, data, batch, predictor, seed"):
        check_resumable(saved(config()), config(), DATA, ["weather"])
