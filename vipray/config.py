"""The configuration: one tree of frozen dataclasses, merged once and validated once.

`load_config` merges the defaults below with a YAML file and `key=value` overrides (OmegaConf), then checks what
the types cannot. Components receive their own sub-config and never the root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from vipray.config_validation import problems, task_shares
from vipray.errors import ConfigError


@dataclass(frozen=True)
class RunConfig:
    """What is run, for how long, and where its output goes."""

    name: str = ""  # folder below `output_root`; empty: the YAML file's stem
    output_root: str = "outputs"
    seed: int = 0
    steps: int = 20


@dataclass(frozen=True)
class ModelConfig:
    """The policy: a Hugging Face folder, a `.gguf` file, or `package:NAME/FILE` inside an installed package."""

    path: str = MISSING
    cache_dir: str = "~/.cache/vipray"  # where a GGUF file is unpacked to a Hugging Face folder, once


@dataclass(frozen=True)
class TaskConfig:
    """One reasoning-gym data set of the prompt mix; its key in `data.tasks` is the task's label."""

    dataset: str = MISSING
    size: int | None = None  # prompts; null: the share of `data.mix_size` that `weight` gives
    seed: int = 0
    params: dict[str, Any] = field(default_factory=dict)  # of the data set; they go before `difficulty`
    difficulty: int | None = None  # level of the data set's curriculum, from 0; null: its defaults
    weight: float | None = None


@dataclass(frozen=True)
class ColumnsConfig:
    """Which columns of a data file mean what; the prompt is a text or a list of chat messages."""

    prompt: str = "prompt"
    answer: str = "answer"
    task: str | None = None
    id: str | None = None
    aliases: str | None = None  # further right answers


@dataclass(frozen=True)
class FileConfig:
    """One data file, Parquet or JSONL; its key in `data.files` is its label and begins the ids of its prompts."""

    path: str = MISSING  # a file, a pattern such as data/train-*.parquet, or `package:NAME/FILE`
    format: str = "auto"  # auto | verl | gsm8k | columns
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    verifier: str = ""  # a key of vipray/verifiers/build.py; empty: the one that the format tells
    task: str = ""  # label of all its prompts; empty: its column or `data_source`, else the file's label
    limit: int | None = None  # prompts to keep at most, the first ones


@dataclass(frozen=True)
class BadRowsConfig:
    """What becomes of rows that cannot be trained on: drop (count, and name the first) | refuse (an error)."""

    empty_prompt: str = "drop"
    missing_answer: str = "refuse"
    conflicting_answers: str = "drop"  # one prompt with different answers: all of its rows
    ungradable_answer: str = "drop"  # the verifier cannot grade it


@dataclass(frozen=True)
class DataConfig:
    """The prompts: a mix of reasoning-gym tasks and data files, each by label."""

    tasks: dict[str, TaskConfig] = field(default_factory=dict)
    files: dict[str, FileConfig] = field(default_factory=dict)
    mix_size: int | None = None  # prompts of the tasks that have a weight, together
    system_prompt: str | None = None  # for prompts that bring none
    max_prompt_tokens: int = 256
    bad_rows: BadRowsConfig = field(default_factory=BadRowsConfig)


@dataclass(frozen=True)
class SamplingConfig:
    """How rollouts are sampled. `max_tokens` bounds the completion."""

    temperature: float = 1.0
    max_tokens: int = 16


@dataclass(frozen=True)
class PaperGPConfig:
    """The paper's Gaussian process (arXiv:2602.01601 section 5.1); the defaults are milder than the paper's."""

    preset: str = "none"  # none | paper | authors_code; a preset replaces the settings below
    clip: float = 0.05  # observed rates are clipped to [clip, 1 - clip] before the logit
    jitter: float = 1e-3
    prior_success_prob: float = 0.5
    bandwidth: float | None = None  # RBF length scale; null: the median heuristic


PAPER_GP_PRESETS = {
    # Zero prior latent and the median heuristic; a clip that only keeps the logit finite.
    "paper": PaperGPConfig(preset="paper", clip=1e-6, jitter=1e-4),
    # github.com/HieuNT91/VIP: fixed length scale, prior latent -1, that is a prior success probability of 0.27.
    "authors_code": PaperGPConfig(
        preset="authors_code", clip=1e-6, jitter=1e-4, bandwidth=0.4, prior_success_prob=1 / (1 + math.e)
    ),
}


@dataclass(frozen=True)
class NoisyGPConfig:
    """The Gaussian process with a binomial observation model."""

    signal_variance: float = 2.0  # of what prompts share, in squared logits
    prompt_variance: float = 2.0  # of what a prompt has for itself
    half_life: float = 16.0  # steps after which evidence weighs half


@dataclass(frozen=True)
class HistoryConfig:
    """Predictors that know a prompt by its own history alone, and the other baselines."""

    half_life: float = 8.0  # beta, global_mean: steps after which evidence weighs half
    process_noise: float = 0.05  # kalman: variance that a logit gains a step
    window: int = 8  # moving_average: visits
    clip: float = 0.05  # last
    ridge_penalty: float = 10.0  # ridge


@dataclass(frozen=True)
class PredictorConfig:
    """The success predictor. `README.md` says which kind to choose when."""

    kind: str = "hybrid"  # a key of vipray/predictors/build.py
    embedding_model: str = MISSING  # sentence-transformers folder or `package:NAME/FOLDER`
    cache_dir: str = "~/.cache/vipray"  # embeddings are kept here by the text's hash
    strip_prefix: str = ""  # text that prompts begin with and that says nothing of them; left out of the embedding
    strip_suffix: str = ""  # the same at their end
    array_backend: str = "auto"  # auto | numpy | cupy
    num_inducing: int = 256  # hybrid, noisy_gp: prompts that the kernel is spanned by
    paper_gp: PaperGPConfig = field(default_factory=PaperGPConfig)
    noisy_gp: NoisyGPConfig = field(default_factory=NoisyGPConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    num_cpus: float = 0.0
    num_gpus: float = 0.0


@dataclass(frozen=True)
class AllocationConfig:
    """The rollout budget and how it is split: B prompts share C rollouts, each between L and U."""

    policy: str = "vip"  # a key of vipray/allocation/policies.py
    objective: str = "mean_success"  # mean_success | log_success | sqrt_success | pass_at_k
    pass_k: int = 8  # k of objective pass_at_k
    estimator: str = "rloo"  # rloo | dr_grpo; also the advantage estimator of the loss
    prompts_per_batch: int = 8  # B
    rollout_budget: int = 64  # C
    lower: int = 3  # L
    upper: int = 24  # U
    num_cpus: float = 0.0


@dataclass(frozen=True)
class GeneratorConfig:
    """The pool of vLLM engines."""

    count: int = 2
    num_cpus: float = 0.5
    num_gpus: float = 0.0
    threads: int = 1  # OpenMP threads of one engine on a CPU
    tensor_parallel_size: int = 1
    dtype: str = "bfloat16"
    max_num_seqs: int = 64
    kv_cache_mib: int | None = 256  # null: vLLM decides from the memory that it finds
    enforce_eager: bool = True
    start_timeout_s: float = 420.0
    rollout_timeout_s: float = 600.0  # longest silence of a generator that has work
    max_restarts: int = 8  # lost generators that are replaced within `restart_window_s`; 0: none
    restart_window_s: float = 1800.0
    restart_backoff_s: float = 1.0  # before the first replacement; doubles with each further one


@dataclass(frozen=True)
class PythonTestsConfig:
    """The sandbox of the verifier `python_tests`: what one answer's code may take, in all its tests together."""

    timeout_s: float = 4.0  # of wall-clock time; more is no evidence, because it depends on the machine's load
    cpu_s: int = 2  # of processor time in one process; more is a wrong answer
    memory_mib: int = 512  # of each process
    processes: int = 16  # at once, threads counted
    file_mib: int = 16


@dataclass(frozen=True)
class VerifierConfig:
    """The verifier actors, each with worker processes of its own."""

    count: int = 2
    num_cpus: float = 0.0
    timeout_s: float = 60.0  # longest wait of the controller for one verdict, the queue of its actor included
    workers: int = 1  # processes of an actor that score at the same time
    answer_timeout_s: float = 5.0  # longest time that one answer may take; then its worker is replaced
    memory_mib: int = 1024  # how far a worker may grow beyond its size at the start
    function: str = ""  # `module:callable` of the verifier `function`
    python_tests: PythonTestsConfig = field(default_factory=PythonTestsConfig)


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters: only they are trained; merged weights are published."""

    rank: int = 0  # 0: every weight is trained
    alpha: int = 32  # the adapters' product is scaled by alpha / rank
    target_modules: list[str] = field(default_factory=list)  # ends of layer names; empty: every linear layer


@dataclass(frozen=True)
class LearnerConfig:
    """The FSDP2 learner group, its loss and its optimiser."""

    ranks: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    threads: int = 2
    # What is computed, and how
    precision: str = "auto"  # auto | bf16 (computes with the published image) | fp32
    packing: str = "auto"  # auto | off: completions of a group share their prompt where the model allows it
    attention: str = "auto"  # auto | sdpa | flex_attention (GPU)
    activation_checkpointing: bool = False
    max_row_tokens: int = 2048  # tokens of a micro-batch; groups that are larger are split, their prompt repeated
    lora: LoraConfig = field(default_factory=LoraConfig)
    # The loss, see vipray/learner/README.md
    estimator: str | None = None  # rloo | dr_grpo | grpo; null: allocation.estimator
    aggregation: str = "prompt_mean"  # prompt_mean | sequence_mean | token_mean
    length_norm: str = "sequence"  # sequence | constant (by sampling.max_tokens) | none: of a rollout's token terms
    clip_low: float = 0.2
    clip_high: float = 0.28
    correction: str = "none"  # none | token | sequence: truncated importance sampling for stale or mismatched rollouts
    correction_cap: float = 2.0
    reject_below: float = 0.0  # rollouts whose geometric mean importance ratio is lower or higher are left out
    reject_above: float | None = None
    mask_truncated: bool = False  # leave completions that hit sampling.max_tokens out of the loss
    kl_coefficient: float = 0.0  # > 0 keeps a reference model and a penalty for leaving it
    # The optimiser
    prompts_per_step: int | None = None  # prompts of a mini-batch; null: one optimiser step a batch
    passes_per_batch: int = 1
    learning_rate: float = 1e-5
    schedule: str = "constant"  # constant | linear | cosine, after the warm-up
    warmup_steps: int = 2  # optimiser steps
    final_learning_rate_factor: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    collective_timeout_s: float = 300.0
    step_timeout_s: float = 1800.0


@dataclass(frozen=True)
class PipelineConfig:
    """How far generation may run ahead of training, and how uneven rollouts are spread over the generators."""

    max_staleness: int = 0  # versions that a trained token may lag behind the learner; 0: on-policy
    on_stale: str = "wait"  # wait | reissue: see vipray/dispatch/staleness.py
    straggler_deadline_s: float | None = None  # after which a batch is trained with what arrived; null: wait for all
    max_tokens_in_flight: float | None = None  # expected tokens at one generator; null: max_num_seqs x max_tokens


@dataclass(frozen=True)
class WeightsConfig:
    """How a policy version is published to the generators."""

    in_flight: str = "keep"  # what becomes of rollouts under way: keep (they go on) | wait | abort (made again)
    rounding: str = "stochastic"  # stochastic | nearest; nearest loses small updates in bf16
    chunk_mib: int = 64
    timeout_s: float = 300.0


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints of the learner. They can be loaded by any number of ranks; `vipray export` makes models of them."""

    every_steps: int = 0  # 0: none
    keep_last: int = 2
    folder: str = ""  # shared by all nodes; empty: `checkpoints` in the run's folder
    load: str = ""  # a checkpoint to begin from: weights and optimiser


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation of every prompt with equal n, before the first and after the last step."""

    rollouts_per_prompt: int = 0  # 0: no evaluation


@dataclass(frozen=True)
class RayConfig:
    """The embedded Ray; a job that is submitted to a cluster uses that cluster instead."""

    num_cpus: float | None = None  # null: what the machine has
    object_store_mib: int = 2048
    actor_start_timeout_s: float = 300.0


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
    known = ", ".join(_keys_of(error.object_type)) if error.object_type else "see vipray/config.py"
    return f"unknown config key {key}: {parent} has {known}"


def _keys_of(object_type: Any) -> list[str]:
    return list(getattr(object_type, "__dataclass_fields__", {}))


def _one_line(error: Exception) -> str:
    key = getattr(error, "full_key", None)
    first = str(error).strip().splitlines()[0]
    return f"{key}: {first}" if key and key not in first else first
