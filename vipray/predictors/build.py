"""From the configuration to a predictor that is ready."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from vipray.arrays import FloatArray
from vipray.config import PAPER_GP_PRESETS, PredictorConfig
from vipray.data.embeddings import embed
from vipray.data.prompts import PromptSet
from vipray.predictors.array_namespace import array_namespace
from vipray.predictors.beta import DiscountedBeta
from vipray.predictors.global_mean import GlobalMean
from vipray.predictors.hybrid import Hybrid
from vipray.predictors.kalman import Kalman
from vipray.predictors.last import LastRate
from vipray.predictors.moving_average import MovingAverage
from vipray.predictors.noisy_gp import NoisyGP
from vipray.predictors.paper_gp import PaperGP
from vipray.predictors.protocol import Predictor
from vipray.predictors.ridge import Ridge

_log = logging.getLogger(__name__)
NEEDS_EMBEDDINGS = ("hybrid", "paper_gp", "noisy_gp", "ridge")


@dataclass(frozen=True)
class PromptKnowledge:
    """What is known of Q prompts before any rollout: embeddings [Q, D], task labels and texts where there are any."""

    prompt_ids: Sequence[str]
    embeddings: FloatArray | None = None
    tasks: Sequence[str] | None = None
    texts: Sequence[str] | None = None


def build_predictor(config: PredictorConfig, prompts: PromptSet) -> Predictor:
    """Embed the prompts' texts, if the predictor uses them, and return the predictor."""
    vectors = None
    if config.kind in NEEDS_EMBEDDINGS:
        bare = [text.removeprefix(config.strip_prefix).removesuffix(config.strip_suffix) for text in prompts.texts]
        embeddings = embed(bare, config.embedding_model, cache_dir=config.cache_dir)
        vectors = embeddings.vectors
        if embeddings.num_truncated:
            _log.warning("%d of %d prompts were cut by the encoder", embeddings.num_truncated, len(prompts))
    tasks = list(prompts.task_of.values())
    return make_predictor(config, PromptKnowledge(prompts.prompt_ids, vectors, tasks, prompts.texts))


def make_predictor(config: PredictorConfig, known: PromptKnowledge) -> Predictor:
    """Return a fresh predictor of the configured kind.

    Raises:
        ValueError: the kind needs embeddings and there are none.
    """
    ids, history = known.prompt_ids, config.history
    if config.kind in NEEDS_EMBEDDINGS:
        return _on_embeddings(config, known)
    if config.kind == "beta":
        return DiscountedBeta(ids, half_life=history.half_life)
    if config.kind == "kalman":
        return Kalman(ids, process_noise=history.process_noise)
    if config.kind == "moving_average":
        return MovingAverage(ids, window=history.window)
    if config.kind == "global_mean":
        return GlobalMean(ids, half_life=history.half_life)
    assert config.kind == "last", config.kind
    return LastRate(ids, clip=history.clip)


def _on_embeddings(config: PredictorConfig, known: PromptKnowledge) -> Predictor:
    if known.embeddings is None:
        raise ValueError(f"predictor {config.kind} needs the prompts' texts to embed them")
    ids, x, xp = known.prompt_ids, known.embeddings, array_namespace(config.array_backend)
    if config.kind == "hybrid":
        return Hybrid(ids, x, known.tasks, known.texts, num_inducing=config.num_inducing, xp=xp)
    if config.kind == "ridge":
        return Ridge(ids, x, penalty=config.history.ridge_penalty, xp=xp)
    if config.kind == "noisy_gp":
        gp = config.noisy_gp
        return NoisyGP(
            ids,
            x,
            signal_variance=gp.signal_variance,
            prompt_variance=gp.prompt_variance,
            half_life=gp.half_life,
            num_inducing=config.num_inducing,
            xp=xp,
        )
    preset = config.paper_gp.preset
    paper = config.paper_gp if preset == "none" else PAPER_GP_PRESETS[preset]
    return PaperGP(
        ids,
        x,
        clip=paper.clip,
        jitter=paper.jitter,
        prior_success_prob=paper.prior_success_prob,
        bandwidth=paper.bandwidth,
        xp=xp,
    )
