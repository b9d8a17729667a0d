"""What the driver of a run knows after a training step, on disk: the part of a checkpoint that is not the learner's.

<checkpoint>/run/
  sampler.npz       which prompts come next
  lengths.npz       how long completions are expected to be
  predictor.npz     what was learned of success; without it the predictor starts from its prior
  plans.npz         allocations of steps that were begun and not trained on yet
  rollouts.parquet  their verified rollouts: they are not made again

Each `.npz` file names the step that it was written after, so that files of two checkpoints cannot be mixed up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vipray.checkpoints import RUN_FOLDER
from vipray.errors import ConfigError
from vipray.records import ROLLOUT_SCHEMA, Allocation, RolloutId, Span
from vipray.state_files import read_state, whole_file, write_state

STATE_VERSION = 1
_ROLLOUTS = "rollouts.parquet"


@dataclass(frozen=True)
class RunState:
    """What a run goes on with after `step` training steps.

    Attributes:
        step: training steps taken.
        sampler: state of the `PromptSampler`; the batches of `plans` are drawn already.
        lengths: state of the `LengthModel`.
        predictor: state of the predictor; None where it is to start from its prior.
        plans: allocations of the steps >= `step` that were begun, in order of step.
        rollouts: their verified rollouts so far (`ROLLOUT_SCHEMA`); None where an actor writes them.
    """

    step: int
    sampler: dict[str, Any]
    lengths: dict[str, Any]
    predictor: dict[str, Any] | None
    plans: tuple[Allocation, ...] = ()
    rollouts: pa.Table | None = None

    def write(self, folder: Path) -> None:
        """Write the files to a new folder, each whole or not at all; `rollouts.parquet` only if `rollouts` is given."""
        parts: dict[str, Any] = {
            "sampler": self.sampler,
            "lengths": self.lengths,
            "plans": [_plan_to_tree(plan) for plan in self.plans],
        }
        if self.predictor is not None:
            parts["predictor"] = self.predictor
        for name, state in parts.items():
            write_state(folder / f"{name}.npz", {"step": self.step, "state": state})
        if self.rollouts is not None:
            with whole_file(folder / _ROLLOUTS) as partial:
                pq.write_table(self.rollouts.cast(ROLLOUT_SCHEMA), partial)

    @classmethod
    def read(cls, folder: Path, step: int) -> tuple[RunState, list[str]]:
        """Read what `write` wrote after `step` training steps.

        Returns the state and a line for whatever is lost: without `predictor.npz` it goes on with no predictor state.

        Raises:
            ConfigError: another file is missing, damaged, or of another step, or plans and rollouts do not fit.
        """
        warnings: list[str] = []
        try:
            predictor = _read_part(folder, "predictor", step)
        except ConfigError as error:
            warnings.append(f"{error}: the predictor starts from its prior, which costs it what the run had learned")
            predictor = None
        plans = _plans_from_tree(folder / "plans.npz", _read_part(folder, "plans", step))
        rollouts = _read_rollouts(folder / _ROLLOUTS)
        _check_plans(folder, step, plans, rollouts)
        sampler, lengths = (_read_part(folder, name, step) for name in ("sampler", "lengths"))
        return cls(step, sampler, lengths, predictor, plans, rollouts), warnings

    def what_holds(self, changed: Collection[str]) -> RunState:
        """What of it holds for a run with other settings.

        Args:
            changed: as `vipray.resume.changed_parts` names it. Another model, other data and other batches end what
                was begun; other data and another predictor leave the predictor its prior. Other data also need a
                sampler and a length model that are told (`accept_changed_prompts`) or fresh.
        """
        state = self
        if {"data", "predictor"} & set(changed):
            state = replace(state, predictor=None)
        if {"model", "data", "batch"} & set(changed):
            state = replace(state, plans=(), rollouts=ROLLOUT_SCHEMA.empty_table())
        return state


def read_run_state(folder: Path, step: int) -> tuple[RunState, list[str]]:
    """Read the driver's part of a checkpoint, and a line for whatever of it is lost.

    Raises:
        ConfigError: it is not complete.
    """
    if not (folder / RUN_FOLDER).is_dir():
        raise ConfigError(
            f"{folder} has no folder {RUN_FOLDER}: only checkpoints of a whole run can be resumed; "
            f"checkpoints.load={folder} takes its weights and optimiser alone"
        )
    return RunState.read(folder / RUN_FOLDER, step)


def _read_part(folder: Path, name: str, step: int) -> Any:
    path = folder / f"{name}.npz"
    part = read_state(path)
    if not isinstance(part, dict) or set(part) != {"step", "state"}:
        raise ConfigError(f"{path} is not the state of a run")
    if part["step"] != step:
        raise ConfigError(f"{path} is of step {part['step']}, and the checkpoint of step {step}")
    return part["state"]


def _read_rollouts(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path, partitioning=None).cast(ROLLOUT_SCHEMA)
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        details = " ".join(str(error).split())
        raise ConfigError(f"{path} is damaged or holds no rollouts: {details}") from None
    return table


def _check_plans(folder: Path, step: int, plans: tuple[Allocation, ...], rollouts: pa.Table) -> None:
    """Raise `ConfigError` unless the plans are of steps that follow each other and each rollout is of one, once."""
    steps = [plan.step for plan in plans]
    if steps != list(range(step, step + len(plans))):
        raise ConfigError(f"{folder / 'plans.npz'} holds the plans of steps {steps}, expected those from {step} on")
    columns = (rollouts.column(name).to_pylist() for name in RolloutId._fields)
    ids = [RolloutId(*values) for values in zip(*columns, strict=True)]
    begun = {rollout_id for plan in plans for rollout_id in replace(plan, dropped=frozenset()).rollout_ids()}
    strange = [rollout_id for rollout_id in ids if rollout_id not in begun]
    if strange:
        raise ConfigError(f"{folder / _ROLLOUTS} holds {len(strange)} rollouts that no plan asked for: {strange[0]}")
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{folder / _ROLLOUTS} holds {len(ids) - len(set(ids))} rollouts twice")


def _plan_to_tree(plan: Allocation) -> dict[str, Any]:
    return {
        "step": plan.step,
        "prompt_ids": plan.prompt_ids,
        "n": plan.n,
        "prompt_weight": plan.prompt_weight,
        "success_prob": plan.success_prob,
        "gradient_variance": plan.gradient_variance,
        "span": [plan.span.start_s, plan.span.end_s],
        "shadow": plan.shadow,
        "dropped": sorted(plan.dropped),
    }


def _plans_from_tree(path: Path, trees: Any) -> tuple[Allocation, ...]:
    try:
        return tuple(_plan_from_tree(tree) for tree in trees)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} holds no plans: {type(error).__name__}: {error}") from None


def _plan_from_tree(tree: Mapping[str, Any]) -> Allocation:
    """Raises `KeyError` or `TypeError` for what is no plan."""
    rest = {name: tree[name] for name in tree if name not in ("prompt_ids", "span", "dropped")}
    return Allocation(
        prompt_ids=tuple(tree["prompt_ids"]),
        span=Span(*tree["span"]),
        dropped=frozenset(RolloutId(*values) for values in tree["dropped"]),
        **rest,
    )
