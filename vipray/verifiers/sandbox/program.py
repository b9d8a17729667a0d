"""A program between stdin and stdout."""

from __future__ import annotations

import sys
import types


def run(code: str) -> None:
    """Run the code as the main module."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(code, "answer.py", "exec"), module.__dict__)
