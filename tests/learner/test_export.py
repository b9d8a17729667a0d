from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from jobs.cli import main
from tests.learner.support import OneRank, make_allocation, make_rollouts, options
from vipray.config import LearnerConfig, LoraConfig
from vipray.learner.tensor_bytes import tensors_in

CONFIG = LearnerConfig(threads=1, precision="fp32", learning_rate=1e-3, warmup_steps=0)


def train_and_save(config, folder, root, rounding="stochastic"):
    """Two steps; return what was published after them, by name."""
    with OneRank(config, options(folder, "bfloat16", rounding, model_source=str(folder))) as trainer:
        for step in range(2):
            trainer.train(make_rollouts(make_allocation(step), seed=step), make_allocation(step))
        *chunks, manifest = trainer.publish(2)
        trainer.save(root, 2, keep_last=1)
        return {name: t.clone() for name, t in tensors_in(manifest.entries, dict(enumerate(chunks)))}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_an_exported_model_is_what_the_engines_were_given(precision, rounding, tiny_model, tmp_path):
    published = train_and_save(replace(CONFIG, precision=precision), tiny_model, tmp_path, rounding)
    assert main(["export", str(tmp_path / "step-000002"), str(tmp_path / "model")]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert model.dtype == torch.bfloat16
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, published[name]), name
    assert len(AutoTokenizer.from_pretrained(tmp_path / "model")) == 258


def test_the_masters_can_be_exported_too(tiny_untied_model, tmp_path):
    published = train_and_save(CONFIG, tiny_untied_model, tmp_path)
    assert main(["export", str(tmp_path / "step-000002"), str(tmp_path / "model"), "--dtype", "float32"]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    for name, weight in model.state_dict().items():
        assert weight.dtype == torch.float32 and not torch.equal(weight, published[name].float())
        assert torch.allclose(weight, published[name].float(), rtol=2**-7), name


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_adapters_are_merged(rounding, tiny_model, tmp_path):
    config = replace(CONFIG, lora=LoraConfig(rank=4, alpha=8), learning_rate=1e-2)
    published = train_and_save(config, tiny_model, tmp_path, rounding)
    assert main(["export", str(tmp_path / "step-000002"), str(tmp_path / "model")]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype="auto").state_dict()
    for name, weight in model.state_dict().items():  # the product of A and B may differ in its last bit
        assert (weight == published[name]).float().mean() > 0.999, name
    moved = [name for name, weight in model.state_dict().items() if not torch.equal(weight, base[name])]
    assert len(moved) == 14 and all("proj" in name for name in moved)


def test_bad_input_is_one_line_and_leaves_nothing(tiny_model, tmp_path, capsys):
    train_and_save(CONFIG, tiny_model, tmp_path)
    export = functools.partial(lambda *args: main(["export", *map(str, args)]))
    assert export(tmp_path / "step-000009", tmp_path / "model") == 2
    assert "no complete checkpoint" in capsys.readouterr().err
    (tmp_path / "taken").mkdir()
    assert export(tmp_path / "step-000002", tmp_path / "taken") == 2
    assert "exists already" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "taken"]
