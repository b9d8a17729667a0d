"""Where a run begins: at its model, at a checkpoint's weights, or where an earlier run of the same name stopped."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from vipray.checkpoints import CheckpointManifest, find_newest, read_manifest, set_apart_newer
from vipray.config import Config
from vipray.data.prompts import PromptSet
from vipray.data.sampler import PromptSampler
from vipray.report.run_data import METRICS_FILE
from vipray.resume import changed_parts, check_resumable
from vipray.run_log import check_output_dir
from vipray.run_state import RunState, read_run_state

AUTO = "auto"


@dataclass(frozen=True)
class Start:
    """What a run goes on from.

    Attributes:
        is_resumed: whether `--resume` was given.
        base: checkpoint whose weights the learner loads; None: the model's own.
        manifest: of the checkpoint that is resumed; None: there is none.
        state: of the driver at that checkpoint, once it is `checked`.
        changed: what of the run is not as it was, and accepted.
        last_sign_s: when the earlier run last wrote to its folder; None: there is no earlier run.
    """

    is_resumed: bool
    base: Path | None
    manifest: CheckpointManifest | None = None
    state: RunState | None = None
    changed: frozenset[str] = frozenset()
    last_sign_s: float | None = None

    @property
    def step(self) -> int:
        """Training steps that were taken before."""
        return 0 if self.manifest is None else self.manifest.step

    @property
    def resume_at(self) -> int | None:
        """For the run's folder: the step after which it goes on; None: it must be new."""
        return self.step if self.is_resumed else None

    def checked(self, config: Config, prompts: PromptSet, accepted: Collection[str], console: Console) -> Start:
        """Read the state of the checkpoint, if it fits this run.

        Raises:
            ConfigError: the run differs from the checkpoint's in what is not accepted, or the state is damaged.
        """
        if self.manifest is None or self.base is None:
            return self
        told = check_resumable(self.manifest.run, config, prompts.fingerprint, accepted)
        changed = changed_parts(self.manifest.run, config, prompts.fingerprint)
        state, warnings = read_run_state(self.base, self.manifest.step)
        for line in (*warnings, *told):
            console.print(f"warning: {line}")
        for path in set_apart_newer(config.checkpoint_dir, self.manifest.step):
            console.print(f"warning: the checkpoint after this one is set apart as {path}")
        return replace(self, state=state.what_holds(changed), changed=changed)

    def sampler(self, config: Config, prompts: PromptSet) -> PromptSampler:
        """The sampler of the run, where the checkpoint left it."""
        sampler = PromptSampler(
            prompts.prompt_ids, config.allocation.prompts_per_batch, config.run.seed, prompts.fingerprint
        )
        if self.state is not None:
            sampler.load_state_dict(self.state.sampler, accept_changed_prompts="data" in self.changed)
        return sampler

    def is_finished(self, config: Config) -> bool:
        """Whether nothing is left to do: all steps were taken, and the last evaluation was made."""
        if self.manifest is None or self.step < config.run.steps:
            return False
        if not config.evaluation.rollouts_per_prompt:
            return True
        path = config.output_dir / "evaluation.parquet"
        return path.is_file() and bool(pc.any(pc.equal(pq.read_table(path)["step"], self.step)).as_py())


def find_start(resume: str | None, config: Config, console: Console) -> Start:
    """Find what to go on from, and say it.

    Raises:
        ConfigError: the checkpoint that was named is not complete; or there is none, and the folder holds a run that
            should have some.
    """
    load = Path(config.checkpoints.load).expanduser().absolute() if config.checkpoints.load else None
    if resume is None:
        return Start(False, load)
    root = config.checkpoint_dir
    if resume == AUTO:
        folder, skipped = find_newest(root)
        for line in skipped:
            console.print(f"skipped: {line}")
    else:
        folder = Path(resume).expanduser()
    last_sign_s = _last_sign_s(config.output_dir)
    if folder is None:
        every_steps = config.checkpoints.every_steps
        if not every_steps or _num_steps(config.output_dir) >= every_steps:  # else it stopped before its first one
            check_output_dir(config.output_dir)  # beginning again would write over it
        console.print(f"nothing to resume below {root}: the run begins at its first step")
        return Start(True, load, last_sign_s=last_sign_s)
    manifest = read_manifest(folder)
    console.print(f"resuming {folder.absolute()}, saved after {manifest.step} steps")
    return Start(True, folder.absolute(), manifest, last_sign_s=last_sign_s)


def _num_steps(folder: Path) -> int:
    """Steps that a run's folder tells of."""
    metrics = folder / METRICS_FILE
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def _last_sign_s(folder: Path) -> float | None:
    """When something in a run's folder was last written, in seconds since the epoch."""
    return max(_times(folder.glob("*.jsonl")), default=None)


def _times(paths: Iterable[Path]) -> list[float]:
    return [path.stat().st_mtime for path in paths if path.stat().st_size]
