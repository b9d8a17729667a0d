from __future__ import annotations

import re

import pytest

from vipray.errors import ConfigError
from vipray.learner.model_folder import check_model_source, check_tokenizer
from vipray.sources import resolve_source


def test_paths_and_packages_resolve(tmp_path):
    assert resolve_source("model.path", str(tmp_path)) == tmp_path
    assert resolve_source("model.path", "package:vipray/report").is_dir()


@pytest.mark.parametrize("source", ["/no/such/folder", "package:no_such/x", "package:vipray/nothing", "package:../x"])
def test_what_is_not_there_is_named_with_its_setting(source):
    with pytest.raises(ConfigError, match=re.escape(f"model.path={source}")):
        resolve_source("model.path", source)


def test_a_model_folder_needs_a_config_and_weights(tmp_path, tiny_model):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        check_model_source(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no weights"):
        check_model_source(str(tmp_path))
    (tmp_path / "model.txt").write_text("")
    with pytest.raises(ConfigError, match=r"not \.gguf"):
        check_model_source(str(tmp_path / "model.txt"))
    assert check_model_source(str(tiny_model)) == tiny_model


def test_a_tokenizer_that_is_not_the_models_is_found_out(tiny_model):
    assert check_tokenizer(tiny_model, 258, "m") is None
    assert check_tokenizer(tiny_model, 240, "m") is None  # rows to spare
    assert "do they belong together" in (check_tokenizer(tiny_model, 100, "m") or "")
    with pytest.raises(ConfigError, match=r"model\.path=m: its tokenizer has 259 tokens, .* vocab_size=258"):
        check_tokenizer(tiny_model, 259, "m")
