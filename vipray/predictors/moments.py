"""Moments of a success probability under its posterior: `E[p]` and `E[4 p (1 - p)]`."""

from __future__ import annotations

import numpy as np

from vipray.arrays import FloatArray

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(20)  # ∫ f(z) N(z; 0, 1) dz ≈ Σ w f(z) / Σ w
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def beta_moments(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For p ~ Beta(a, b): `E[p]` and `E[4 p (1 - p)] = 4 a b / ((a + b) (a + b + 1))`.

    Args:
        a: [...] > 0.
        b: [...] > 0.

    >>> beta_moments(np.array([1.0]), np.array([1.0]))[1].round(3).tolist()
    [0.667]
    """
    total = a + b
    return a / total, 4.0 * a * b / (total * (total + 1.0))


def logit_normal_moments(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For p = sigmoid(g), g ~ N(mean, variance): `E[p]` and `E[4 p (1 - p)]`, by Gauss-Hermite quadrature.

    Args:
        mean: [...] of the latent.
        variance: [...] >= 0 of the latent.
    """
    g = mean[..., None] + np.sqrt(variance)[..., None] * _NODES
    p = 0.5 * (1.0 + np.tanh(0.5 * g))
    return (p * _WEIGHTS).sum(-1), (4.0 * p * (1.0 - p) * _WEIGHTS).sum(-1)
