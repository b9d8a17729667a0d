"""Predictors of a prompt's success probability, one file each, behind one protocol."""

PREDICTOR_KINDS = (
    "hybrid",
    "paper_gp",
    "noisy_gp",
    "beta",
    "kalman",
    "moving_average",
    "ridge",
    "global_mean",
    "last",
)
