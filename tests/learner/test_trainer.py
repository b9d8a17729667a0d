"""Steps, publications and checkpoints of a learner group, on gloo."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from tests.learner.support import (
    OneRank,
    changed,
    full_weights,
    gradients,
    make_allocation,
    make_rollouts,
    options,
    run_ranks,
)
from vipray.checkpoints import complete_checkpoints
from vipray.config import LearnerConfig, LoraConfig
from vipray.errors import CheckpointError, ConfigError, LearnerGroupError
from vipray.learner import policy_model
from vipray.learner.tensor_bytes import tensors_in
from vipray.learner.trainer import Rendezvous, Trainer

_STEPS = 3
CONFIG = LearnerConfig(
    threads=1, precision="fp32", learning_rate=1e-2, warmup_steps=2, clip_low=0.9, clip_high=9.0, max_row_tokens=40
)


def published(trainers_chunks):
    """Tensors of a version from (chunks of each rank, manifest)."""
    ranks, manifest = trainers_chunks
    chunks = dict(enumerate(chunk for group in zip(*ranks, strict=True) for chunk in group))
    return {name: tensor.clone() for name, tensor in tensors_in(manifest.entries, chunks)}


def apart(ours, theirs):
    """Distance of two sets of weights, relative to how far a few steps with Adam move them."""
    flat = [torch.cat([weights[name].flatten() for name in theirs]) for weights in (ours, theirs)]
    return float((flat[0] - flat[1]).norm() / (CONFIG.learning_rate * len(flat[0]) ** 0.5))


def _run(rendezvous, config, trainer_options, results):
    trainer = Trainer(config, trainer_options, rendezvous)
    metrics = []
    for step in range(_STEPS):
        allocation = make_allocation(step)
        metrics.append(trainer.train(make_rollouts(allocation, seed=step), allocation))
    for outcome in ("wrong", "error"):
        silent = changed(make_rollouts(make_allocation()), reward=0.0, outcome=outcome)
        metrics.append(trainer.train(silent, make_allocation()))
    *chunks, manifest = trainer.publish(_STEPS)
    weights = full_weights(trainer)
    torch.save((metrics, chunks, manifest, weights), results / f"{rendezvous.rank}.pt")
    trainer.save(results / "checkpoints", _STEPS, keep_last=2)
    trainer.shutdown()


def run_group(num_ranks, config, trainer_options, results):
    results.mkdir()
    run_ranks(_run, num_ranks, config, trainer_options, results)
    return [torch.load(results / f"{rank}.pt", weights_only=False) for rank in range(num_ranks)]


@pytest.fixture(scope="module")
def one_rank(tiny_model, tmp_path_factory):
    return run_group(1, CONFIG, options(tiny_model), tmp_path_factory.mktemp("one") / "results")


@pytest.fixture(scope="module")
def two_ranks(tiny_model, tmp_path_factory):
    results = tmp_path_factory.mktemp("two") / "results"
    return run_group(2, CONFIG, options(tiny_model), results), results


def test_two_ranks_train_to_the_same_weights_as_one(one_rank, two_ranks):
    (first, second), _ = two_ranks
    for mine, theirs in zip(first[0], one_rank[0][0], strict=True):
        mine, theirs = dict(mine), dict(theirs)
        assert 0 < mine.pop("learner/balance") <= 1 == theirs.pop("learner/balance")
        for name in [name for name in theirs if name.startswith("learner/ratio/")]:  # bins are 0.002 wide
            assert mine.pop(name) == pytest.approx(theirs.pop(name), rel=5e-3)
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-6, nan_ok=True)
    assert apart(first[3], one_rank[0][3]) < 1e-3
    assert repr(second[0]) == repr(first[0])  # every rank reports the same


def test_ranks_publish_their_rows_and_together_the_whole_model(one_rank, two_ranks):
    (first, second), _ = two_ranks
    together = published(([first[1], second[1]], first[2]))
    for name, tensor in first[3].items():
        assert torch.equal(together[name], tensor), name
    whole = sum(chunk.nbytes for chunk in first[1])
    assert max(whole, sum(chunk.nbytes for chunk in second[1])) < 0.6 * sum(first[2].chunk_nbytes)
    assert first[2].version == _STEPS and first[2] == second[2]


def test_the_metrics_are_those_of_the_batch(one_rank):
    first, second, third, silent, unscored = one_rank[0][0]
    rows = [batch.to_pylist()[0] for batch in make_rollouts(make_allocation())]
    assert first["learner/tokens"] == sum(len(row["completion_token_ids"]) for row in rows)
    rates = [metrics["learner/learning_rate"] for metrics in (first, second, third)]
    assert rates == pytest.approx([0.5e-2, 1e-2, 1e-2])  # a warm-up of two steps
    assert first["learner/grad_norm"] > 0 and first["learner/skipped_step"] == 0
    assert first["groups/without_signal"] == 0 and 0 < first["learner/entropy"] < np.log(258)
    assert first["learner/ratio/q01"] <= first["learner/ratio/q50"] <= first["learner/ratio/q99"]
    assert all(np.isfinite(list(metrics.values())).all() for metrics in one_rank[0][0][:-1])
    assert (silent["groups/without_signal"], silent["learner/skipped_step"]) == (3, 1)
    assert silent["learner/tokens"] > 0  # the engine is compared with the learner all the same
    assert (unscored["rollouts/unscored"], unscored["learner/tokens"], unscored["learner/skipped_step"]) == (15, 0, 1)


def test_a_checkpoint_goes_on_with_another_number_of_ranks(two_ranks, one_rank, tiny_model):
    _, results = two_ranks
    folder = results / "checkpoints" / f"step-{_STEPS:06d}"
    allocation = make_allocation(_STEPS)
    rollouts = make_rollouts(allocation, seed=_STEPS)
    after = []
    for checkpoint in (folder, None):
        with OneRank(CONFIG, options(tiny_model)) as trainer:
            if checkpoint is not None:
                assert trainer.load(checkpoint) == _STEPS
            else:  # the same steps without a break
                for step in range(_STEPS):
                    trainer.train(make_rollouts(make_allocation(step), seed=step), make_allocation(step))
            trainer.train(rollouts, allocation)
            after.append(full_weights(trainer))
    assert apart(*after) < 1e-3


def test_checkpoints_are_atomic_and_the_last_ones_are_kept(tiny_model, tmp_path):
    root = tmp_path / "checkpoints"
    with OneRank(CONFIG, options(tiny_model)) as trainer:
        (root / ".step-000002.partial").mkdir(parents=True)  # left by a crash
        for step in (1, 2, 3):
            trainer.save(root, step, keep_last=2)
        trainer.finish_saving()
        assert sorted(path.name for path in root.iterdir()) == ["step-000002", "step-000003"]
        with pytest.raises(ConfigError, match="no complete checkpoint"):
            trainer.load(root / "step-000001")
    with (
        OneRank(replace(CONFIG, lora=LoraConfig(rank=2)), options(tiny_model)) as other,
        pytest.raises(CheckpointError, match="of another model"),
    ):
        other.load(root / "step-000003")


def test_a_checkpoint_is_complete_as_soon_as_it_is_written(tiny_model, tmp_path):
    """What is on disk must not wait for the next save: the process may be gone by then."""
    with OneRank(CONFIG, options(tiny_model)) as trainer:
        trainer.save(tmp_path, 7, keep_last=1)
        deadline = time.monotonic() + 30
        while not complete_checkpoints(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-000007"]
        (tmp_path / "step-000009").mkdir()  # no checkpoint, whatever it is called
        assert len(complete_checkpoints(tmp_path)) == 1


def test_a_checkpoint_that_cannot_be_written_is_an_error_that_says_so(tiny_model, tmp_path):
    root = tmp_path / "checkpoints"
    with OneRank(CONFIG, options(tiny_model)) as trainer:
        trainer.save(root, 1, keep_last=1)
        trainer.finish_saving()
        (root / "blocked").write_text("")
        assert trainer.save(root / "blocked", 2, keep_last=1) is None
        assert "step 2 could not be written" in str(trainer.finish_saving())
    assert (root / "step-000001").is_dir()


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_in_bf16_the_model_computes_with_what_is_published(rounding, tiny_model):
    config = replace(CONFIG, precision="bf16", learning_rate=1e-4, warmup_steps=0)
    with OneRank(config, options(tiny_model, "bfloat16", rounding)) as trainer:
        before = full_weights(trainer)
        allocation = make_allocation()
        trainer.train(make_rollouts(allocation), allocation)
        *chunks, manifest = trainer.publish(1)
        sent = published(([chunks], manifest))
        computed = {name: p.detach().full_tensor() for name, p in trainer._model.module.named_parameters()}
        masters = full_weights(trainer)
    for name, tensor in computed.items():
        assert torch.equal(tensor, sent[name].float()), name
        assert not torch.equal(masters[name], before[name]) or "norm" in name
    assert torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])  # tied: one noise for both
    moved = torch.cat([(masters[n] - before[n]).flatten() for n in masters])
    seen = torch.cat([(computed[n] - before[n]).flatten() for n in masters])
    below = moved.abs() < torch.cat([before[n].flatten() for n in masters]).abs() * 2.0**-9
    assert below.float().mean() > 0.5  # most updates are less than half a step of the grid
    arrived = float((seen * moved.sign())[below].sum() / moved[below].abs().sum())
    assert arrived == pytest.approx(1.0, abs=0.1) if rounding == "stochastic" else arrived < 0.1  # swallowed


def test_two_ranks_draw_the_same_image_as_one(tiny_model, tmp_path):
    config = replace(CONFIG, precision="fp32")
    trainer_options = options(tiny_model, "bfloat16", "stochastic")
    both = run_group(2, replace(config, learning_rate=1e-12), trainer_options, tmp_path / "two")
    alone = run_group(1, replace(config, learning_rate=1e-12), trainer_options, tmp_path / "one")
    together = published(([both[0][1], both[1][1]], both[0][2]))
    for name, tensor in published(([alone[0][1]], alone[0][2])).items():
        assert torch.equal(together[name], tensor), name


def test_only_rollouts_of_the_learners_own_version_are_compared_with_the_engine(tiny_model):
    allocation = make_allocation(step=3)
    current = make_rollouts(allocation)
    lengths = [len(batch.to_pylist()[0]["logprobs"]) for batch in current]
    mixed = [
        changed([batch], policy_version_first=3 - index % 2, policy_version_last=3)[0]
        for index, batch in enumerate(current)
    ]  # where new weights came in the midst, later tokens look back at keys of the old ones
    old = changed(current, policy_version_first=2, policy_version_last=2)
    compared = []
    for rollouts in (current, mixed, old):
        with OneRank(CONFIG, options(tiny_model)) as trainer:
            metrics = trainer.train(rollouts, allocation)
        compared.append(metrics["engine/logprob_difference/tokens"])
        assert np.isnan(metrics["engine/logprob_difference/mean"]) == (compared[-1] == 0)
    assert compared == [sum(lengths), sum(lengths[::2]), 0]


def test_several_optimiser_steps_a_batch(tiny_model):
    config = replace(CONFIG, prompts_per_step=1, passes_per_batch=2, correction="token", schedule="linear")
    with OneRank(config, options(tiny_model, total_steps=6)) as trainer:
        allocation = make_allocation()
        metrics = trainer.train(make_rollouts(allocation), allocation)
    assert metrics["learner/optimizer_steps"] == 6
    assert metrics["learner/learning_rate"] == 0.0  # the last of the run
    assert metrics["learner/truncated_share"] > 0


def test_a_penalty_for_leaving_the_reference_grows_from_zero(tiny_model):
    for lora in (LoraConfig(), LoraConfig(rank=4)):
        config = replace(CONFIG, kl_coefficient=0.1, lora=lora, warmup_steps=0)
        with OneRank(config, options(tiny_model)) as trainer:
            allocation = make_allocation()
            first, second = (trainer.train(make_rollouts(allocation), allocation)["learner/kl"] for _ in range(2))
        assert first == pytest.approx(0.0, abs=1e-6) and second > 1e-5


def test_a_batch_without_a_signal_changes_no_weight_and_is_counted(tiny_model):
    with OneRank(CONFIG, options(tiny_model)) as trainer:
        before = full_weights(trainer)
        allocation = make_allocation()
        metrics = trainer.train(changed(make_rollouts(allocation), reward=1.0, outcome="correct"), allocation)
        after = full_weights(trainer)
    assert metrics["groups/without_signal"] == 3 and metrics["learner/grad_norm"] == 0
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_one_rollout_without_finite_log_probabilities_is_as_good_as_absent(tiny_model):
    allocation = make_allocation(n=(8,))
    rollouts = make_rollouts(allocation, seed=3)
    length = len(rollouts[5].to_pylist()[0]["logprobs"])
    spoilt = changed([rollouts[5]], logprobs=[float("-inf"), *[float("nan")] * (length - 1)])
    without = changed([rollouts[5]], outcome="error")
    found = []
    for replacement in (spoilt, without):
        with OneRank(CONFIG, options(tiny_model)) as trainer:
            found.append(gradients(trainer, [*rollouts[:5], *replacement, *rollouts[6:]], allocation))
    assert torch.isfinite(found[0]).all() and torch.equal(found[0], found[1])


def test_a_gradient_that_is_not_finite_is_thrown_away(tiny_model):
    with OneRank(CONFIG, options(tiny_model)) as trainer:
        with torch.no_grad():
            name = "model.norm.weight"
            trainer._weights.masters[name].to_local()[0] = float("inf")
        before = full_weights(trainer)
        allocation = make_allocation()
        metrics = trainer.train(make_rollouts(allocation), allocation)
        after = full_weights(trainer)
    assert metrics["learner/nonfinite_gradient"] == metrics["learner/skipped_step"] == 1
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.fixture(scope="module")
def sliding_model(tiny_model, tmp_path_factory):
    """A model whose layers look back four tokens only."""
    folder = tmp_path_factory.mktemp("sliding")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=258, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=128, use_sliding_window=True, sliding_window=4,
        max_window_layers=0, initializer_range=0.1,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_a_model_that_cannot_be_packed_is_trained_on_plain_rows(sliding_model, monkeypatch):
    with OneRank(CONFIG, options(sliding_model)) as trainer:
        assert trainer.summary.endswith("plain rows: it has layers of type sliding_attention")
        (plain,) = gradients(trainer, make_rollouts(make_allocation()), make_allocation())
    monkeypatch.setattr(policy_model, "why_not_packed", lambda _config: None)
    with OneRank(CONFIG, options(sliding_model)) as trainer:  # what its config.json hides, the self-test finds
        assert "self-test" in trainer.summary
        (found,) = gradients(trainer, make_rollouts(make_allocation()), make_allocation())
    assert torch.equal(plain, found)


def test_a_folder_whose_weights_are_not_the_models_is_refused(tiny_model, sliding_model, tmp_path):
    for path in sliding_model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text((tiny_model / "config.json").read_text())
    with (
        pytest.raises(ConfigError, match=r"safetensors files are not those of its config\.json"),
        OneRank(CONFIG, options(tmp_path)),
    ):
        pass


def _stay_away(rendezvous, config, trainer_options, results):
    trainer = Trainer(config, trainer_options, rendezvous)
    if rendezvous.rank == 1:  # comes to no step
        time.sleep(20)
        return
    try:
        trainer.train(make_rollouts(make_allocation(7)), make_allocation(7))
    except LearnerGroupError as error:
        (results / "error.txt").write_text(str(error))


def test_a_rank_that_does_not_come_is_named_and_nobody_hangs(tiny_model, tmp_path):
    run_ranks(_stay_away, 2, replace(CONFIG, collective_timeout_s=4.0), options(tiny_model), tmp_path)
    text = (tmp_path / "error.txt").read_text()
    assert text.startswith("learner rank 0 of 2, coming to step 7:") and "1" in text
    assert "learner.collective_timeout_s=4" in text


def test_a_group_that_is_never_complete_says_so(tiny_model):
    config = replace(CONFIG, collective_timeout_s=2.0)
    with pytest.raises(LearnerGroupError, match="learner rank 0 of 2, joining the group"):
        Trainer(config, options(tiny_model), Rendezvous(0, 2, "127.0.0.1", 29555))
