"""Shared fixtures: unit tests cannot start Ray; a tiny random model with a tokenizer of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(autouse=True)
def no_ray_in_unit_tests(request, monkeypatch):
    """Make `ray.init` raise in tests without the `ray` marker."""
    if request.node.get_closest_marker("ray"):
        return
    import ray

    def refuse(*_args, **_kwargs):
        raise AssertionError("a unit test started Ray: mark it with pytest.mark.ray")

    monkeypatch.setattr(ray, "init", refuse)


def save_tiny_model(folder: Path, *, tied: bool, head_dim: int = 32) -> Path:
    """Save a random two-layer Llama with a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<pad>": 0, "<eos>": 1} | {token: index for index, token in enumerate(alphabet, start=2)}
    bytes_only = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=4 * head_dim,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.1,  # far from uniform, so that log-probabilities react to every parameter
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """Folder of a tiny model with tied embeddings."""
    return save_tiny_model(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="session")
def tiny_untied_model(tmp_path_factory) -> Path:
    """Folder of a tiny model with an output head of its own."""
    return save_tiny_model(tmp_path_factory.mktemp("untied"), tied=False)
