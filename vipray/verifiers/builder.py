"""What workers are told so that they can build verifiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vipray.config import PythonTestsConfig, TaskConfig
from vipray.verifiers.build import build_verifier
from vipray.verifiers.protocol import Verifier


@dataclass(frozen=True)
class VerifierBuilder:
    """Makes a verifier from its name; a value that can be sent to another process.

    Attributes:
        function: `module:callable` of the verifier `function`.
        tasks: `data.tasks`, for the verifier `reasoning_gym`.
        python_tests: limits of the verifier `python_tests`.
    """

    function: str = ""
    tasks: Mapping[str, TaskConfig] = field(default_factory=dict)
    python_tests: PythonTestsConfig = field(default_factory=PythonTestsConfig)

    def __call__(self, name: str) -> Verifier:
        """Build one; raises `ConfigError` where it lacks what it needs."""
        if name == "reasoning_gym":
            import reasoning_gym  # noqa: F401 - takes seconds, which must not be the first answer's
        function = self.function if name == "function" else ""
        return build_verifier(name, function=function, tasks=self.tasks, python_tests=self.python_tests)
