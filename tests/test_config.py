from __future__ import annotations

import pickle
from typing import Any

import pytest
import yaml

from vipray import errors
from vipray.config import load_config, to_yaml
from vipray.config_validation import cautions
from vipray.errors import ConfigError

MINIMAL: dict[str, Any] = {
    "model": {"path": "somewhere"},
    "predictor": {"embedding_model": "elsewhere"},
    "data": {"tasks": {"sums": {"dataset": "chain_sum", "size": 10}}},
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(MINIMAL))
    return file


def test_overrides_beat_the_file_and_the_file_beats_defaults(path):
    path.write_text(yaml.safe_dump(MINIMAL | {"run": {"steps": 7, "seed": 3}}))
    config = load_config(path, ["run.steps=9", "data.tasks.sums.size=11"])
    assert (config.run.steps, config.run.seed, config.allocation.lower) == (9, 3, 3)
    assert config.data.tasks["sums"].size == 11


def test_the_run_is_named_after_the_file(path):
    assert load_config(path).output_dir.parts[-2:] == ("outputs", "small")
    assert load_config(path, ["run.name=other"]).output_dir.name == "other"


def test_the_resolved_configuration_loads_to_itself(path, tmp_path):
    config = load_config(path, ["predictor.paper_gp.bandwidth=0.5"])
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(config))
    assert load_config(again) == config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.stepz=3", ["unknown config key run.stepz", "steps"]),
        ("nonsense=3", ["unknown config key nonsense", "allocation"]),
        ("run.steps=many", ["run.steps", "'many'"]),
        ("run.steps=0", ["run.steps must be > 0, got 0"]),
        ("model=3", ["model must be a mapping", "3"]),
        ("learner.aggregation=flat", ["learner.aggregation must be one of prompt_mean, sequence_mean, token_mean"]),
        ("learner.estimator=ppo", ["learner.estimator must be one of rloo, dr_grpo, grpo", "'ppo'"]),
        ("learner.prompts_per_step=0", ["learner.prompts_per_step must be > 0, got 0"]),
        ("learner.kl_coefficient=-1", ["learner.kl_coefficient must be >= 0"]),
        ("learner={reject_above: 0.5, reject_below: 0.6}", ["learner.reject_above=0.5 is not above"]),
        ("learner.attention=flex_attention", ["no backward pass on a CPU", "learner.attention=sdpa"]),
        ("learner.final_learning_rate_factor=2", ["learner.final_learning_rate_factor must lie in [0, 1]"]),
        ("pipeline.max_staleness=-1", ["pipeline.max_staleness must be >= 0, got -1"]),
        ("pipeline.max_tokens_in_flight=15", ["pipeline.max_tokens_in_flight=15", "sampling.max_tokens=16"]),
        ("pipeline.on_stale=drop", ["pipeline.on_stale must be one of wait, reissue", "'drop'"]),
        ("weights.in_flight=stop", ["weights.in_flight must be one of keep, wait, abort", "'stop'"]),
        ("checkpoints.keep_last=0", ["checkpoints.keep_last must be > 0, got 0"]),
        ("learner.learning_rate=.nan", ["learner.learning_rate", "nan"]),
        ("allocation.policy=best", ["allocation.policy", "uniform, vip, inverse_accuracy", "'best'"]),
        ("allocation.objective=median", ["allocation.objective", "mean_success, log_success", "'median'"]),
        ("allocation.pass_k=0", ["allocation.pass_k must be > 0, got 0"]),
        ("allocation.estimator=ppo", ["allocation.estimator", "rloo, dr_grpo"]),
        ("allocation.lower=1", ["allocation.lower must be >= 2 for estimator rloo", "got 1"]),
        ("allocation.upper=2", ["allocation.upper=2", "allocation.lower=3"]),
        ("allocation.prompts_per_batch=11", ["allocation.prompts_per_batch=11", "10 "]),
        ("predictor.paper_gp.clip=0.5", ["predictor.paper_gp.clip", "(0, 0.5)", "0.5"]),
        ("data.tasks.sums.size=0", ["data.tasks.sums.size", "got 0"]),
        ("data.tasks.more.size=3", ["data.tasks.more.dataset has no value"]),
        ("data.tasks.more.dataset=gcd", ["data.tasks.more.size has no value", "data.mix_size"]),
        ("data.tasks.sums.weight=0", ["data.tasks.sums.weight must be > 0, got 0"]),
        ("data.tasks.sums.weight=2", ["data.tasks.sums.weight=2.0 needs data.mix_size"]),
        ("data.tasks.sums.difficulty=-1", ["data.tasks.sums.difficulty must be >= 0, got -1"]),
        ("data.mix_size=0", ["data.mix_size must be >= 1, got 0"]),
        ("data.files.sums.path=x", ["data.files.sums", "data.tasks has the label 'sums' too"]),
        ("data.files.x.limit=3", ["data.files.x.path has no value"]),
        ("data.files.x={path: y, limit: 0}", ["data.files.x.limit must be >= 1, got 0"]),
        ("data.files.x={path: y, format: csv}", ["data.files.x.format must be one of auto, verl", "'csv'"]),
        ("data.files.x={path: y, verifier: best}", ["data.files.x.verifier must be one of", "math", "'best'"]),
        ("data.files.x={path: y, verifier: reasoning_gym}", ["reasoning_gym scores prompts of data.tasks alone"]),
        ("data.bad_rows.empty_prompt=keep", ["data.bad_rows.empty_prompt must be one of drop, refuse", "'keep'"]),
        ("data.files.x={path: y, verifier: function}", ["verifiers.function has no value", "module:callable"]),
        ("verifiers.function=checks", ["verifiers.function", "module:callable", "'checks'"]),
        ("verifiers.workers=0", ["verifiers.workers must be > 0, got 0"]),
        ("verifiers.memory_mib=0", ["verifiers.memory_mib must be > 0, got 0"]),
        ("verifiers.python_tests.cpu_s=0", ["verifiers.python_tests.cpu_s must be > 0, got 0"]),
        ("verifiers.answer_timeout_s=20", ["verifiers.timeout_s=60 must be >= 4 * verifiers.answer_timeout_s = 80"]),
        ("generators.dtype=float16", ["weights.rounding=stochastic", "float16"]),
        ("run.seed=-1", ["run.seed must be >= 0, got -1"]),
        ("generators.num_cpus=-0.5", ["generators.num_cpus must be >= 0"]),
        ("learner.step_timeout_s=0", ["learner.step_timeout_s must be > 0"]),
        ("learner.beta1=1.5", ["learner.beta1 must lie in [0, 1)"]),
        ("sampling.temperature=0.001", ["sampling.temperature must be >= 0.01"]),
        ("ray.object_store_mib=1", ["ray.object_store_mib must be >= 80"]),
        ("predictor.kind=oracle", ["predictor.kind", "hybrid", "'oracle'"]),
        ("steps", ["'steps'", "key=value"]),
    ],
)
def test_bad_settings_are_refused_with_key_value_and_remedy(path, override, words):
    with pytest.raises(ConfigError) as refused:
        load_config(path, [override])
    message = str(refused.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_text_can_be_set_to_nothing(path):
    config = load_config(path, ["data.files.x={path: y, verifier: math}", "data.files.x.verifier=", "run.name="])
    assert (config.data.files["x"].verifier, config.run.name) == ("", path.stem)
    assert load_config(path, ["data.system_prompt="]).data.system_prompt is None


def test_bf16_needs_engines_that_take_what_the_learner_computes_with(path):
    with pytest.raises(ConfigError, match=r"learner\.precision=bf16 .*set generators\.dtype=bfloat16"):
        load_config(path, ["learner.precision=bf16", "generators.dtype=float32", "weights.rounding=nearest"])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learner.aggregation=token_mean", "variance formula that the allocation minimises does not hold"),
        ("learner.aggregation=sequence_mean", "weighs prompts by their number of rollouts"),
        ("learner.estimator=grpo", "divides each group by its own standard deviation"),
        ("learner.estimator=dr_grpo", "is not the estimator that the allocation is optimal for"),
        ("learner.mask_truncated=true", "biased"),
        ("pipeline.max_staleness=1", "the clip alone corrects for that; learner.correction=token weighs them"),
        ("pipeline.straggler_deadline_s=5", "the gradient is biased"),
    ],
)
def test_settings_that_are_at_odds_with_the_allocation_are_warned_of(path, override, words):
    assert list(cautions(load_config(path))) == []
    (caution,) = cautions(load_config(path, [override]))
    assert words in caution


def test_the_run_knows_its_optimiser_steps(path):
    steps = load_config(path).optimizer_steps
    config = load_config(path, ["learner.prompts_per_step=3", "learner.passes_per_batch=2"])
    assert config.optimizer_steps == steps * 3 * 2  # eight prompts make three mini-batches


@pytest.mark.parametrize("budget", [23, 193])
def test_an_infeasible_budget_names_all_four_numbers(path, budget):
    with pytest.raises(ConfigError) as refused:
        load_config(path, [f"allocation.rollout_budget={budget}"])
    for part in (
        f"allocation.rollout_budget={budget}",
        "allocation.prompts_per_batch=8",
        "allocation.lower=3",
        "allocation.upper=24",
        "[24, 192]",
    ):
        assert part in str(refused.value)


@pytest.mark.parametrize("budget", [24, 192])
def test_a_budget_on_either_bound_is_feasible(path, budget):
    assert load_config(path, [f"allocation.rollout_budget={budget}"]).allocation.rollout_budget == budget


def test_dr_grpo_needs_three_rollouts(path):
    with pytest.raises(ConfigError, match=r"allocation\.lower must be >= 3 for estimator dr_grpo"):
        load_config(path, ["allocation.estimator=dr_grpo", "allocation.lower=2"])


@pytest.mark.parametrize("policy", ["inverse_accuracy", "inverse_variance", "knapsack", "mixed_group", "log_success"])
def test_a_policy_that_ignores_the_weights_of_the_objective_is_refused(path, policy):
    load_config(path, [f"allocation.policy={policy}"])
    with pytest.raises(ConfigError, match=rf"{policy} ignores the weights .*=sqrt_success .*policy=uniform or vip"):
        load_config(path, [f"allocation.policy={policy}", "allocation.objective=sqrt_success"])


@pytest.mark.parametrize("policy", ["vip", "uniform"])
@pytest.mark.parametrize("objective", ["mean_success", "log_success", "sqrt_success", "pass_at_k"])
def test_every_objective_goes_with_the_policy_that_uses_its_weights_and_with_the_control_arm(path, policy, objective):
    config = load_config(path, [f"allocation.policy={policy}", f"allocation.objective={objective}"])
    assert (config.allocation.policy, config.allocation.objective) == (policy, objective)


@pytest.mark.parametrize("content", ["a: [1", "- 1\n- 2", "3"])
def test_files_that_hold_no_settings_are_refused(path, content):
    path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)):
        load_config(path)


def test_an_empty_prompt_set_is_refused(path):
    path.write_text(yaml.safe_dump(MINIMAL | {"data": {"tasks": {}}}))
    with pytest.raises(ConfigError, match=r"data\.tasks is empty: name at least one"):
        load_config(path)


def test_weights_share_a_number_of_prompts_and_the_shares_load_again(path, tmp_path):
    more = {"dataset": "gcd", "weight": 1.0}
    tasks = MINIMAL["data"]["tasks"] | {"a": more, "b": more | {"weight": 2.0}}
    path.write_text(yaml.safe_dump(MINIMAL | {"data": {"tasks": tasks, "mix_size": 31}}))
    config = load_config(path)
    assert {label: task.size for label, task in config.data.tasks.items()} == {"sums": 10, "a": 10, "b": 21}
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(config))
    assert load_config(again) == config
    with pytest.raises(ConfigError, match=r"data\.tasks\.a\.size=7 is not its share by weight, 10"):
        load_config(path, ["data.tasks.a.size=7"])
    with pytest.raises(ConfigError, match=r"data\.tasks\.a\.weight=1.0 gives it no prompt of data\.mix_size=1"):
        load_config(path, ["data.mix_size=1"])


def test_files_alone_are_a_prompt_set(path):
    path.write_text(yaml.safe_dump(MINIMAL | {"data": {"files": {"x": {"path": "x.jsonl"}}}}))
    assert load_config(path).data.files["x"].columns.answer == "answer"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        load_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if isinstance(kind, type)])
def test_errors_survive_pickling(kind):
    error = pickle.loads(pickle.dumps(kind("the value 3 is too small: use 4")))
    assert type(error) is kind
    assert str(error) == "the value 3 is too small: use 4"


def test_the_limit_of_python_tests_counts_where_a_file_names_them(path):
    assert load_config(path, ["verifiers.answer_timeout_s=3"]).verifiers.answer_timeout_s == 3
    words = r"verifiers\.python_tests\.timeout_s=4 must be < verifiers\.answer_timeout_s=3"
    with pytest.raises(ConfigError, match=words):
        load_config(path, ["verifiers.answer_timeout_s=3", "data.files.x={path: y, verifier: python_tests}"])
