"""From the configuration to a predictor that is ready."""

from __future__ import annotations

import logging

from vipray.config import PredictorConfig
from vipray.data.embeddings import embed
from vipray.data.prompts import PromptSet
from vipray.predictors.array_namespace import array_namespace
from vipray.predictors.paper_gp import PaperGP
from vipray.predictors.protocol import Predictor

_log = logging.getLogger(__name__)


def build_predictor(config: PredictorConfig, prompts: PromptSet) -> Predictor:
    """Embed the prompts' texts and return the predictor over them."""
    xp = array_namespace(config.array_backend)
    embeddings = embed(prompts.texts, config.embedding_model)
    if embeddings.num_truncated:
        _log.warning("%d of %d prompts were cut by the encoder", embeddings.num_truncated, len(prompts))
    return PaperGP(
        prompts.prompt_ids,
        embeddings.vectors,
        clip=config.clip,
        jitter=config.jitter,
        prior_success_prob=config.prior_success_prob,
        bandwidth=config.bandwidth,
        xp=xp,
    )
