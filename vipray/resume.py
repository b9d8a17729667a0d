"""Whether a run can go on from a checkpoint: what must be as it was, what may change if it is accepted, what is told.

A checkpoint's manifest holds the `facts` of the run that wrote it. On resuming they are compared, setting by setting,
with those of the run that is to go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from vipray.config import Config, to_yaml
from vipray.errors import ConfigError
from vipray.run_state import STATE_VERSION

ACCEPTABLE = ("model", "data", "batch", "predictor", "seed")  # values of `--accept-changed`

_CONSEQUENCES = {
    "model": "rollouts that were begun are made anew",
    "data": "the predictor starts from its prior, steps that were begun are drawn anew",
    "batch": "steps that were begun are drawn anew",
    "predictor": "the predictor starts from its prior",
    "seed": "prompts keep the order of the former seed",
}
_BATCH = (
    *(f"allocation.{name}" for name in ("policy", "objective", "pass_k", "estimator", "prompts_per_batch")),
    *(f"allocation.{name}" for name in ("rollout_budget", "lower", "upper")),
    "learner.estimator",
    "sampling.max_tokens",
    "sampling.temperature",
)
_EMBEDDING = ("predictor.embedding_model", "predictor.strip_prefix", "predictor.strip_suffix")
_SHAPE_OF_PREDICTOR = {  # settings by kind, without which its state means something else
    "hybrid": (*_EMBEDDING, "predictor.num_inducing"),
    "noisy_gp": (*_EMBEDDING, "predictor.num_inducing"),
    "paper_gp": _EMBEDDING,
    "ridge": _EMBEDDING,
    "moving_average": ("predictor.history.window",),
}
# Where the run is and on how many machines: another cluster may go on with it.
_UNTOLD = ("run.name", "run.steps", "run.output_root", "generators.count", "verifiers.count")
_UNTOLD_SECTIONS = ("ray.", "supervision.", "checkpoints.", "model.cache_dir", "predictor.cache_dir")


@dataclass(frozen=True)
class _Difference:
    """One setting, then and now; `part` is what `--accept-changed` calls it, None where nothing hangs on it."""

    key: str
    then: Any
    now: Any
    part: str | None = None

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.then)} then, {_shown(self.now)} now"


def facts(config: Config, fingerprint: str) -> dict[str, Any]:
    """What a checkpoint remembers of its run, as JSON can hold it.

    Args:
        config: the resolved configuration.
        fingerprint: of the prompt set (`PromptSet.fingerprint`).
    """
    return {"state_version": STATE_VERSION, "config": to_yaml(config), "fingerprint": fingerprint}


def check_resumable(
    saved: Mapping[str, Any], config: Config, fingerprint: str, accepted: Collection[str] = ()
) -> list[str]:
    """Compare a run with the `facts` of the one that it is to go on with.

    Args:
        saved: `facts` of the run that wrote the checkpoint.
        config: of the run that is to go on.
        fingerprint: of its prompt set.
        accepted: parts that may have changed, of `ACCEPTABLE`.

    Returns:
        A line for each setting that differs and does not stand in the way.

    Raises:
        ConfigError: one line with every difference that is not accepted, and what would accept it; or state of another
            version, or none, which nothing accepts.
    """
    unknown = sorted(set(accepted) - set(ACCEPTABLE))
    if unknown:
        raise ConfigError(f"--accept-changed {unknown[0]} is not one of {', '.join(ACCEPTABLE)}")
    found = list(_differences(saved, config, fingerprint))
    refused = [difference for difference in found if difference.part and difference.part not in accepted]
    if refused:
        parts = [part for part in ACCEPTABLE if any(difference.part == part for difference in refused)]
        options = " ".join(f"--accept-changed {part}" for part in parts)
        consequences = "; ".join(f"{part}: {_CONSEQUENCES[part]}" for part in parts)
        raise ConfigError(
            f"this run cannot go on from a run that differs in {'; '.join(map(str, refused))}: "
            f"set it as it was, or accept it with {options} ({consequences})"
        )
    return [str(it) + (f" (accepted, {_CONSEQUENCES[it.part]})" if it.part else "") for it in found]


def changed_parts(saved: Mapping[str, Any], config: Config, fingerprint: str) -> frozenset[str]:
    """Which of `ACCEPTABLE` differ, whether that is accepted or not: what to give to `RunState.what_holds`.

    Raises:
        ConfigError: state of another version, or none.
    """
    return frozenset(difference.part for difference in _differences(saved, config, fingerprint) if difference.part)


def _differences(saved: Mapping[str, Any], config: Config, fingerprint: str) -> Iterator[_Difference]:
    """All that is worth telling, in the order of the configuration; the prompt set first."""
    then, now = _settings_then(saved), _settings(to_yaml(config))
    if saved["fingerprint"] != fingerprint:
        yield _Difference("data", f"fingerprint {saved['fingerprint'][:12]}", fingerprint[:12], "data")
    for key in dict.fromkeys([*now, *then]):  # a setting may be new, or be gone
        values = then.get(key), now.get(key)
        part = _part_of(key, config.predictor.kind)
        is_told = part or not (key in _UNTOLD or key.startswith(_UNTOLD_SECTIONS))
        if values[0] != values[1] and is_told:
            yield _Difference(key, *values, part)


def _part_of(key: str, predictor_kind: str) -> str | None:
    """What hangs on a setting."""
    if key == "model.path" or key.startswith("learner.lora."):
        return "model"
    if key in _BATCH:
        return "batch"
    if key == "predictor.kind" or key in _SHAPE_OF_PREDICTOR.get(predictor_kind, ()):
        return "predictor"
    return "seed" if key == "run.seed" else None


def _settings_then(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the checkpoint's run. Raises `ConfigError` where its state cannot be gone on with."""
    version = saved.get("state_version")
    if version != STATE_VERSION:
        what = "holds no state of a run" if version is None else f"holds the state of a run in version {version}"
        raise ConfigError(
            f"the checkpoint {what}, and this program goes on with version {STATE_VERSION}: checkpoints.load=FOLDER "
            "begins a new run from its weights and optimiser alone"
        )
    return _settings(saved["config"])


def _settings(text: str) -> dict[str, Any]:
    """Values by dotted key."""
    return dict(_flat(yaml.safe_load(text), ""))


def _flat(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: Any) -> str:
    """A value on one line, with null as the configuration writes it."""
    return "null" if value is None else " ".join(str(value).split()) or "''"
