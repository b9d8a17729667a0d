from __future__ import annotations

import pickle

import pytest
import yaml

from vipray import errors
from vipray.config import load_config, to_yaml
from vipray.errors import ConfigError

MINIMAL = {
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


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        load_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if isinstance(kind, type)])
def test_errors_survive_pickling(kind):
    error = pickle.loads(pickle.dumps(kind("the value 3 is too small: use 4")))
    assert type(error) is kind
    assert str(error) == "the value 3 is too small: use 4"
