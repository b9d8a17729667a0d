"""The configuration: one tree of frozen dataclasses, merged once and validated once.

`load_config` merges the defaults of vipray/config_sections.py with a YAML file and `key=value` overrides (OmegaConf),
then checks what the types cannot. Components receive their own sub-config and never the root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from vipray.config_sections import (
    PAPER_GP_PRESETS,
    AllocationConfig,
    BadRowsConfig,
    CheckpointConfig,
    ColumnsConfig,
    DataConfig,
    EvaluationConfig,
    FileConfig,
    GeneratorConfig,
    HistoryConfig,
    LearnerConfig,
    LoraConfig,
    ModelConfig,
    NoisyGPConfig,
    PaperGPConfig,
    PipelineConfig,
    PredictorConfig,
    PythonTestsConfig,
    RayConfig,
    RestartConfig,
    RunConfig,
    SamplingConfig,
    ScriptedConfig,
    SupervisionConfig,
    TaskConfig,
    VerifierConfig,
    WeightsConfig,
)
from vipray.config_validation import problems, task_shares
from vipray.errors import ConfigError

__all__ = [
    "PAPER_GP_PRESETS",
    "AllocationConfig",
    "BadRowsConfig",
    "CheckpointConfig",
    "ColumnsConfig",
    "Config",
    "DataConfig",
    "EvaluationConfig",
    "FileConfig",
    "GeneratorConfig",
    "HistoryConfig",
    "LearnerConfig",
    "LoraConfig",
    "ModelConfig",
    "NoisyGPConfig",
    "PaperGPConfig",
    "PipelineConfig",
    "PredictorConfig",
    "PythonTestsConfig",
    "RayConfig",
    "RestartConfig",
    "RunConfig",
    "SamplingConfig",
    "ScriptedConfig",
    "SupervisionConfig",
    "TaskConfig",
    "VerifierConfig",
    "WeightsConfig",
    "load_config",
    "to_yaml",
]


@dataclass(frozen=True)
class Config:
    """Root of the configuration; only `jobs` and `actors/spawn.py` see it."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    allocation: AllocationConfig = field(default_factory=AllocationConfig)
    generators: GeneratorConfig = field(default_factory=GeneratorConfig)
    verifiers: VerifierConfig = field(default_factory=VerifierConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    scripted: ScriptedConfig = field(default_factory=ScriptedConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    @property
    def checkpoint_dir(self) -> Path:
        """`checkpoints.folder`, or `checkpoints` in the run's folder."""
        folder = self.checkpoints.folder
        return Path(folder).expanduser() if folder else self.output_dir / "checkpoints"

    @property
    def optimizer_steps(self) -> int:
        """Optimiser steps of the whole run: batches x mini-batches of a batch x passes."""
        prompts = self.allocation.prompts_per_batch
        size = min(self.learner.prompts_per_step or prompts, prompts)
        return self.run.steps * math.ceil(prompts / size) * self.learner.passes_per_batch

    @property
    def output_dir(self) -> Path:
        """`run.output_root` / `run.name`."""
        return Path(self.run.output_root).expanduser() / self.run.name


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Merge defaults, the YAML file at `path` and `key=value` overrides, and validate the result.

    Raises:
        ConfigError: an unreadable file, an unknown key, a wrong type, a missing or an impossible value. The
            message is one line that names the key, the value and what would be right.
    """
    path = Path(path)
    file_values = _read_yaml(path)
    for item in overrides:
        if "=" not in item or item.startswith("="):
            raise ConfigError(f"override {item!r} is not of the form key=value, e.g. run.steps=10")
    try:
        values = OmegaConf.merge(file_values, OmegaConf.from_dotlist([_with_empty_text(item) for item in overrides]))
        for key, value in values.items():
            if key in Config.__dataclass_fields__ and not OmegaConf.is_dict(value):
                raise ConfigError(f"{key} must be a mapping of settings, got {value!r}")
        merged = OmegaConf.merge(OmegaConf.structured(Config), values)
        if not merged.run.name:
            OmegaConf.set_readonly(merged.run, False)
            merged.run.name = path.stem
        for key in sorted(OmegaConf.missing_keys(merged)):
            raise ConfigError(f"{key} has no value: set it in {path} or as {key}=…")
        config = OmegaConf.to_object(merged)
    except ConfigKeyError as error:
        raise ConfigError(_unknown_key(error)) from None
    except (OmegaConfBaseException, TypeError) as error:
        raise ConfigError(_one_line(error)) from None
    if not isinstance(config, Config):
        raise ConfigError(f"{path} does not hold a mapping of settings")
    found = list(problems(config))
    if found:
        raise ConfigError("; ".join(found))
    return replace(config, data=_with_sizes(config.data))


def _with_empty_text(override: str) -> str:
    """Return an override, where it sets a text to nothing with the empty text and not with null."""
    key, _, value = override.partition("=")
    return f"{key}=''" if not value and _type_of(key) is str else override


def _type_of(key: str) -> Any:
    """The type of a setting; None for one that there is not."""
    kind: Any = Config
    for part in key.split("."):
        if is_dataclass(kind):
            kind = get_type_hints(kind).get(part)
        else:
            kind = get_args(kind)[1] if get_origin(kind) is dict else None
    return kind


def _with_sizes(data: DataConfig) -> DataConfig:
    """Give the tasks that have a weight their share of `data.mix_size`."""
    shares = task_shares(data)
    sized = {label: replace(data.tasks[label], size=size) for label, size in shares.items()}
    return replace(data, tasks=data.tasks | sized)


def to_yaml(config: Config) -> str:
    """The whole resolved configuration as YAML."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _read_yaml(path: Path) -> Any:
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"config {path} cannot be read: {error.strerror}") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"config {path} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"config {path} must hold a mapping of settings, found a {type(values).__name__}")
    return OmegaConf.create(values)


def _unknown_key(error: ConfigKeyError) -> str:
    key = error.full_key or str(error.key)
    parent = key.rpartition(".")[0] or "the root"
    known = ", ".join(_keys_of(error.object_type)) if error.object_type else "see vipray/config_sections.py"
    return f"unknown config key {key}: {parent} has {known}"


def _keys_of(object_type: Any) -> list[str]:
    return list(getattr(object_type, "__dataclass_fields__", {}))


def _one_line(error: Exception) -> str:
    key = getattr(error, "full_key", None)
    first = str(error).strip().splitlines()[0]
    return f"{key}: {first}" if key and key not in first else first
