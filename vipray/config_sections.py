"""The sections of the configuration and their defaults; `vipray/config.py` puts them together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


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

    engine: str = "vllm"  # vllm | scripted: answers by the section `scripted`, for trying out faults
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

    engine: str = "fsdp2"  # fsdp2 | scripted: trains no model, for trying out faults
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
    """Checkpoints of the whole run. Any number of ranks can load them; `vipray export` makes models of them."""

    every_steps: int = 0  # 0: none
    keep_last: int = 2
    folder: str = ""  # shared by all nodes; empty: `checkpoints` in the run's folder
    load: str = ""  # a checkpoint to begin from: weights and optimiser; `--resume` goes on with everything
    grace_s: float = 25.0  # after SIGTERM, for the step under way to end and a checkpoint to be written


@dataclass(frozen=True)
class RestartConfig:
    """How lost actors of one kind are replaced."""

    max_restarts: int = 8  # within `window_s`; 0: none
    window_s: float = 1800.0
    backoff_s: float = 1.0  # before the first replacement; doubles with each further one within the window


@dataclass(frozen=True)
class SupervisionConfig:
    """How dead and hung actors are found and replaced."""

    generators: RestartConfig = field(default_factory=RestartConfig)
    verifiers: RestartConfig = field(default_factory=lambda: RestartConfig(backoff_s=0.1))
    planners: RestartConfig = field(default_factory=lambda: RestartConfig(backoff_s=0.1))  # predictor and allocator
    learners: RestartConfig = field(default_factory=lambda: RestartConfig(max_restarts=4, backoff_s=0.1))
    health_interval_s: float = 5.0  # between two questions to an actor whether it is there
    health_timeout_s: float = 60.0  # longest wait for the answer; an actor that does not give it is ended
    max_kills: int = 3  # actors that a rollout may bring down before it is set aside


@dataclass(frozen=True)
class ScriptedConfig:
    """What stands in for the model where an engine is `scripted`."""

    success_prob_low: float = 0.1  # the prompts' success probabilities are spread between these
    success_prob_high: float = 0.9
    latency_s: float = 0.05  # median time of a rollout; the longest takes about four times that
    num_tokens: int = 8  # of a completion
    training_s: float = 0.05  # time of a training step
    parameters: int = 1024  # of the scripted learner


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
