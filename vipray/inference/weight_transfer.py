"""vLLM weight-transfer backend `object_store`: loads published chunks that the generator hands over in memory files.

vLLM finds it through the `vllm.general_plugins` entry point where this package is installed, and through
`WorkerExtension` where it is only on the path (a job's working directory). Each process of an engine registers it.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from vipray.inference.memory_file import map_bytes
from vipray.learner.tensor_bytes import tensors_in
from vipray.records import TensorEntry, TensorPiece
from vipray.verifiers.limits import die_with_parent

BACKEND = "object_store"


@dataclass
class ObjectStoreInitInfo(WeightTransferInitInfo):
    """Nothing to agree on: every group of chunks brings its own table of contents."""


@dataclass
class ObjectStoreUpdateInfo(WeightTransferUpdateInfo):
    """One group of chunks: where the bytes of each can be mapped, and the fields of its tensors' entries."""

    paths: dict[int, str] = field(default_factory=dict)
    entries: list[Any] = field(default_factory=list)


class ObjectStoreWeightTransfer(WeightTransferEngine[ObjectStoreInitInfo, ObjectStoreUpdateInfo]):
    """Loads checkpoint-format tensors layer by layer, so that repacked weights are repacked again."""

    init_info_cls = ObjectStoreInitInfo
    update_info_cls = ObjectStoreUpdateInfo

    def init_transfer_engine(self, init_info: ObjectStoreInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Put the model's layers into their loadable form."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ObjectStoreUpdateInfo) -> None:
        """Load one group of chunks. Layers that span groups keep views of it, and these keep the mapping alive."""
        entries = [
            TensorEntry(name, dtype, tuple(shape), tuple(TensorPiece(*piece) for piece in pieces))
            for name, dtype, shape, pieces in update_info.entries
        ]
        chunks = {int(number): map_bytes(path) for number, path in update_info.paths.items()}
        model: Any = self.model
        model.load_weights(tensors_in(entries, chunks))

    def finish_weight_update(self) -> None:
        """Repack what was loaded and put it in the place of the old weights."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held between updates."""


def register() -> None:
    """Make the backend known to vLLM in this process; safe to call again.

    A process that vLLM made ends with the one that made it: an engine must not outlive its actor and keep its memory.
    """
    if multiprocessing.parent_process() is not None:
        die_with_parent()
    registry: dict[str, Any] = WeightTransferEngineFactory._registry
    if BACKEND not in registry:
        WeightTransferEngineFactory.register_engine(BACKEND, ObjectStoreWeightTransfer)


class WorkerExtension:
    """Adds nothing to vLLM's worker; importing it registers the backend in the worker's process."""


register()
