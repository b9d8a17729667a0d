"""Builds a verifier by its name.

What a verifier needs (sympy, reasoning-gym, a user's module) is imported when it is built, so that a process pays
only for what it uses.
"""

from __future__ import annotations

from collections.abc import Mapping

from vipray.config import PythonTestsConfig, TaskConfig
from vipray.errors import ConfigError
from vipray.verifiers.protocol import Verifier

VERIFIERS = ("exact", "function", "gsm8k", "math", "multiple_choice", "python_tests", "qa", "qa_f1", "reasoning_gym")


def build_verifier(
    name: str,
    *,
    function: str = "",
    tasks: Mapping[str, TaskConfig] | None = None,
    python_tests: PythonTestsConfig | None = None,
) -> Verifier:
    """Return the verifier of a name.

    Args:
        name: one of `VERIFIERS`.
        function: `module:callable`, for the verifier `function` alone.
        tasks: `data.tasks`, for the verifier `reasoning_gym` alone.
        python_tests: limits of the sandbox, for the verifier `python_tests` alone.

    Raises:
        ConfigError: no such verifier, or it lacks what it needs.
    """
    if function and name != "function":
        raise ConfigError(f"a function ({function}) was given to verifier {name!r}: only 'function' takes one")
    match name:
        case "exact":
            from vipray.verifiers.exact import ExactVerifier

            return ExactVerifier()
        case "function":
            from vipray.verifiers.function import FunctionVerifier

            return FunctionVerifier(function)
        case "gsm8k":
            from vipray.verifiers.gsm8k import Gsm8kVerifier

            return Gsm8kVerifier()
        case "math":
            from vipray.verifiers.math import MathVerifier

            return MathVerifier()
        case "multiple_choice":
            from vipray.verifiers.multiple_choice import MultipleChoiceVerifier

            return MultipleChoiceVerifier()
        case "python_tests":
            from vipray.verifiers.python_tests import PythonTestsVerifier

            return PythonTestsVerifier(python_tests or PythonTestsConfig())
        case "qa" | "qa_f1":
            from vipray.verifiers.qa import QaVerifier

            return QaVerifier("f1" if name == "qa_f1" else "em")
        case "reasoning_gym":
            from vipray.verifiers.reasoning_gym import ReasoningGymVerifier

            return ReasoningGymVerifier(tasks or {})
        case _:
            raise ConfigError(f"unknown verifier {name!r}: choose one of {', '.join(VERIFIERS)}")
