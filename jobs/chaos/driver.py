"""The driver of a training as a process that can be killed and started again, and what is seen of it from outside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vipray.checkpoints import complete_checkpoints
from vipray.report.run_data import METRICS_FILE

_END_TIMEOUT_S = 30.0


class Driver:
    """`python -m jobs.train … --resume auto`; killed when the context is left.

    Args:
        arguments: configuration and overrides.
        environment: of the process.
        run_dir: the run's folder.
        checkpoint_dir: that of its checkpoints.
        log: where its output goes.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        run_dir: Path,
        checkpoint_dir: Path,
        log: Path,
    ) -> None:
        self._command = [sys.executable, "-m", "jobs.train", *arguments, "--resume", "auto"]
        self._environment = dict(environment)
        self._metrics = run_dir / METRICS_FILE
        self._checkpoint_dir = checkpoint_dir
        self._log = log
        self.start()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process, anew where there was one."""
        self.is_training = False
        self._num_steps: int | None = None
        self._checkpoints = set(self._checkpoint_names())
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait(_END_TIMEOUT_S)

    def look(self) -> bool:
        """Take note of steps; return whether there is a new one. A driver that resumes takes some back first."""
        lines = self._metrics.read_bytes().count(b"\n") if self._metrics.is_file() else 0
        is_new = self._num_steps is not None and lines > self._num_steps
        self._num_steps = lines
        self.is_training = self.is_training or is_new
        return is_new

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    @property
    def has_new_checkpoint(self) -> bool:
        """Whether a checkpoint was completed since the start."""
        return not self._checkpoints.issuperset(self._checkpoint_names())

    def last_words(self) -> str:
        """The last line of its output that says something."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def _checkpoint_names(self) -> list[str]:
        return [path.name for path in complete_checkpoints(self._checkpoint_dir)]
