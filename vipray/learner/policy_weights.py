"""The fp32 master weights, the image of them that a version is, and its rows as a rank publishes them.

A version of the policy is its masters rounded to the engines' dtype, with noise that is a function of seed, version and
place alone. In bf16 the model computes with that image as well: policy sampled and policy trained are the same numbers,
while the optimiser moves the masters, so that no update is lost below half a step of the bf16 grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from vipray.learner.lora import merged_rows, public_name
from vipray.learner.rounding import round_stochastically
from vipray.learner.shards import local_rows
from vipray.learner.tensor_bytes import plan_manifest
from vipray.records import WeightManifest


class PolicyWeights:
    """Weights of a sharded model; every method that changes or publishes them is called on all ranks alike.

    Args:
        model: from `build_sharded_model`.
        num_ranks: of the group.
        publish_dtype: dtype of a published version.
        rounding: `stochastic` or `nearest`; dtypes other than bfloat16 are always rounded to nearest.
        computes_image: the model computes with the published image instead of the masters.
        seed: of the noise.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_ranks: int,
        publish_dtype: torch.dtype,
        rounding: str,
        computes_image: bool,
        seed: int,
    ) -> None:
        self._model = model
        self._num_ranks = num_ranks
        self._dtype = publish_dtype
        self._is_stochastic = rounding == "stochastic" and publish_dtype == torch.bfloat16
        self._seed = seed
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._has_adapters = any(public_name(name) is None for name in self._trained)
        self._is_image = computes_image and not self._has_adapters  # merged weights are never computed with
        self.masters = (
            {name: p.detach().clone().requires_grad_() for name, p in self._trained.items()}
            if self._is_image
            else self._trained
        )
        self._published = list(self._names())
        self.draw_image(0)

    def take_gradients(self) -> None:
        """Hand the gradients of the image to the masters."""
        if self._is_image:
            for name, parameter in self._trained.items():
                self.masters[name].grad, parameter.grad = parameter.grad, None

    def draw_image(self, version: int, substep: int = 0) -> None:
        """Make the model compute with the image of the masters as they are now.

        Args:
            version: that the image belongs to.
            substep: optimiser steps still to come before the version is complete; 0 is what is published.
        """
        if not self._is_image:
            return
        with torch.no_grad():
            for name, parameter in self._trained.items():
                rows = self._rounded(name, self.masters[name], version, substep)
                parameter.to_local().copy_(rows)

    def plan(self, chunk_nbytes: int) -> WeightManifest:
        """Table of contents of every publication, but for its version."""
        shapes = [(name, tuple(tensor.shape)) for name, _, tensor in self._published]
        return plan_manifest(shapes, self._dtype, chunk_nbytes, self._num_ranks)

    def rows(self, version: int) -> Iterator[torch.Tensor]:
        """This rank's rows of each published tensor, rounded, one after the other."""
        added = merged_rows(self._model) if self._has_adapters else {}
        with torch.no_grad():
            for name, canonical, tensor in self._published:
                # An image that was drawn stays as it is: its values lie on the grid already.
                yield self._rounded(canonical, tensor, version, 0, added.get(name)).cpu()

    def _rounded(
        self, name: str, tensor: Any, version: int, substep: int, extra: torch.Tensor | None = None
    ) -> torch.Tensor:
        """This rank's rows of a tensor in the published dtype."""
        start, rows = local_rows(tensor)
        if extra is not None:
            rows = rows + extra
        if not self._is_stochastic:
            return rows.to(self._dtype)
        row_size = math.prod(tensor.shape[1:])
        return round_stochastically(rows, self._seed, version, substep, name, start=start * row_size)

    def _names(self) -> Iterator[tuple[str, str, Any]]:
        """Public name, public name of the parameter behind it, and the tensor, of all that an engine loads, in order.

        A tied output head comes under both its names, with the same numbers.
        """
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        first = {id(parameter): name for name, parameter in reversed(parameters.items())}
        for name, tensor in self._model.state_dict().items():
            public = public_name(name)
            if public is None:
                continue
            parameter = parameters.get(name, tensor)
            behind = first[id(parameter)] if name in parameters else name
            yield public, public_name(behind) or behind, parameter
