"""The vLLM engine of a generator: `AsyncLLM`, uneven requests, weights through the `object_store` backend.

The engine starts with placeholder weights and an untied output head. It serves nothing before it has taken and
confirmed a published version, so that a generator which joins late or is replaced cannot sample from old weights.
The head is untied because vLLM on a CPU repacks a tied head once, at start, and a reload of the embedding never
reaches it; publishing both tensors does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Any

import psutil

from vipray.arrays import ByteArray
from vipray.errors import EngineLostError, RolloutAbortedError, WeightSyncError, summary_line
from vipray.inference.memory_file import shared_bytes
from vipray.inference.protocol import Completion
from vipray.inference.shared_memory import forget_names
from vipray.records import RolloutId, WeightManifest

_SHUTDOWN_TIMEOUT_S = 15.0  # in order it takes 5.4 s; vLLM's default of 5 s ends in a kill that leaves shared memory


@dataclass(frozen=True)
class VllmEngineOptions:
    """What `AsyncLLM` is started with. `kv_cache_bytes=None` leaves the size to vLLM."""

    model_folder: str
    max_model_len: int
    max_tokens: int
    temperature: float
    dtype: str
    seed: int
    max_num_seqs: int
    tensor_parallel_size: int = 1
    enforce_eager: bool = True
    kv_cache_bytes: int | None = None
    in_flight: str = "keep"  # what becomes of rollouts when new weights come: keep | wait | abort


class VllmEngine:
    """`Engine` on vLLM's `AsyncLLM`; one instance per generator process."""

    def __init__(self, options: VllmEngineOptions) -> None:
        self._options = options
        self._llm: Any = None
        self._sampling_params: Any = None
        self._version: int | None = None
        self._is_confirmed = asyncio.Event()  # cleared while weights are loaded

    async def start(self) -> None:
        """Start the engine's processes with placeholder weights; 10 to 40 seconds on a CPU."""
        from vllm import SamplingParams
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM

        from vipray.inference import weight_transfer

        options = self._options
        settings: dict[str, Any] = dict(
            model=options.model_folder,
            load_format="dummy",
            hf_overrides={"tie_word_embeddings": False},
            dtype=options.dtype,
            seed=options.seed,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            tensor_parallel_size=options.tensor_parallel_size,
            enforce_eager=options.enforce_eager,
            kv_cache_memory_bytes=options.kv_cache_bytes,
            logprobs_mode="processed_logprobs",
            worker_extension_cls=f"{weight_transfer.__name__}.{weight_transfer.WorkerExtension.__name__}",
            weight_transfer_config={"backend": weight_transfer.BACKEND},
            disable_log_stats=True,
        )
        self._sampling_params = SamplingParams(
            n=1,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            logprobs=0,  # of the sampled token alone
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings))
        await self._llm.init_weight_transfer_engine(_init_request())
        forget_names(psutil.Process().children(recursive=True))

    async def generate(self, rollout_id: RolloutId, prompt_token_ids: Sequence[int]) -> Completion:
        """Sample one completion at the confirmed version."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._version is None:
            raise WeightSyncError(f"rollout {rollout_id} was asked of an engine that has confirmed no weights yet")
        await self._is_confirmed.wait()
        # The salt keeps the prefix cache from serving keys of older weights to rollouts that start on newer ones. Those
        # under way when weights come keep the keys that they have: that is what keeping them means.
        prompt = {"prompt_token_ids": list(prompt_token_ids), "cache_salt": f"version {self._version}"}
        request_id = f"{rollout_id.step}/{rollout_id.prompt_id}/{rollout_id.k}"
        final: Any = None
        try:
            async for output in self._llm.generate(prompt, self._sampling_params, request_id=request_id):
                final = output
        except EngineDeadError as error:
            raise EngineLostError(f"vLLM's engine core has ended: {summary_line(error)}") from error
        if final.outputs[0].finish_reason == "abort":
            raise RolloutAbortedError(f"rollout {rollout_id} was given up for new weights")
        return _completion(final.outputs[0])

    async def load_weights(self, manifest: WeightManifest, chunks: Sequence[ByteArray]) -> int:
        """Load `manifest.version` group by group and confirm it.

        Requests in flight are held and go on afterwards, or are waited for, or given up, by `in_flight`. Requests that
        come in meanwhile wait. After an error the engine serves nothing until a version is loaded.

        Raises:
            WeightSyncError: the chunks are not the manifest's, or the engine reports another version.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        if tuple(len(chunk) for chunk in chunks) != manifest.chunk_nbytes:
            raise WeightSyncError(f"version {manifest.version} came with chunks that are not those of its manifest")
        self._is_confirmed.clear()
        await self._llm.pause_generation(mode=self._options.in_flight, clear_cache=False)
        await self._llm.start_weight_update()
        for group in range(manifest.num_groups):
            with ExitStack() as stack:
                filled = [number for number in manifest.chunks_of(group) if len(chunks[number])]
                paths = {number: stack.enter_context(shared_bytes(chunks[number])) for number in filled}
                entries = [astuple(entry) for entry in manifest.entries_of(group)]
                await self._llm.update_weights(WeightTransferUpdateRequest({"paths": paths, "entries": entries}))
        await self._llm.finish_weight_update(weight_version=str(manifest.version))
        confirmed = int(await self._llm.get_weight_version())
        if confirmed != manifest.version:
            raise WeightSyncError(f"the engine was given version {manifest.version} and reports version {confirmed}")
        await self._llm.reset_prefix_cache()  # frees memory; that nothing old is served is the salt's doing
        await self._llm.resume_generation()
        self._version = confirmed
        self._is_confirmed.set()
        return confirmed

    async def shutdown(self) -> None:
        """End the engine core and its workers."""
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown, _SHUTDOWN_TIMEOUT_S)
            self._llm = None


def _init_request() -> Any:
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

    return WeightTransferInitRequest({})


def _completion(output: Any) -> Completion:
    token_ids = tuple(output.token_ids)
    logprobs = tuple(at[token].logprob for at, token in zip(output.logprobs, token_ids, strict=True))
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        text=output.text,
        finish_reason=output.finish_reason,
        policy_versions=tuple(
            int(span.version) for span in output.weight_versions for _ in range(span.start, span.end)
        ),
    )
