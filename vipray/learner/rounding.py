"""Stochastic rounding of fp32 master weights to bf16, the same on any number of ranks.

Rounding to nearest returns the old weight as long as an update is below half a step of the bf16 grid, on which released
models lie, so that small updates never reach the engine. Adding uniform noise to the bits that are dropped, then
truncating, carries with exactly the probability of the fraction: the result is unbiased.

The noise is a hash of where a weight stands, not of a generator's state: every rank rounds the rows that it holds, and
together they get what one rank alone would have got.
"""

from __future__ import annotations

import hashlib

import torch

_DROPPED_BITS = 16  # a float32 has 16 mantissa bits more than a bfloat16
_LOW_BITS = (1 << _DROPPED_BITS) - 1
_BLOCK = 1 << 15  # weights at once: they stay in the cache, and torch starts no threads that would wait for each other


def round_stochastically(values: torch.Tensor, *key: int | str, start: int = 0) -> torch.Tensor:
    """Round float32 to bfloat16, up or down with probabilities that make the result unbiased.

    Args:
        values: any shape; infinities and NaN are kept.
        key: what the noise belongs to, such as seed, version and name; the same key gives the same noise.
        start: index of the first value within its whole tensor, in row-major order.
    """
    seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "little", signed=True)
    flat = values.detach().contiguous().view(-1)
    rounded = torch.empty(flat.shape, dtype=torch.bfloat16, device=values.device)
    for first in range(0, len(flat), _BLOCK):
        block = flat[first : first + _BLOCK]
        noise = _noise(seed, start + first, len(block), values.device)
        # An infinity has nothing to carry, and a NaN with its usual bits stays one.
        bits = noise.add_(block.view(torch.int32)).bitwise_and_(~_LOW_BITS)
        rounded[first : first + _BLOCK] = bits.view(torch.float32)
    return rounded.view(values.shape)


def _noise(seed: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """[count] int32, uniform in [0, 2^16): two rounds of multiply and shift of seed and place."""
    high, low = divmod(start, 1 << 32)
    bits = torch.arange(count, dtype=torch.int32, device=device).add_(_wrap(low))
    bits.bitwise_xor_(_wrap(seed ^ (high * 0x9E3779B1)))
    for multiplier, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):  # github.com/skeeto/hash-prospector, public domain
        bits.bitwise_xor_(bits.bitwise_right_shift(16).bitwise_and_(0xFFFF))
        bits.mul_(_wrap(multiplier))
        bits.bitwise_xor_(bits.bitwise_right_shift(shift).bitwise_and_(0xFFFFFFFF >> shift))
    return bits.bitwise_and_(_LOW_BITS)


def _wrap(value: int) -> int:
    """The 32 low bits as a signed integer."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
