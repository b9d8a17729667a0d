"""Virtual environments for what a benchmark compares with, so that none of it has to fit into the project's own.

An environment is made once, below a cache folder, under a name that its requirements and the Python give it. The list
of what is installed is written last, so that an installation which was interrupted starts over.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from vipray.errors import VipRayError

CACHE_DIR = "~/.cache/vipray/bench"
STAMP = "installed.json"  # versions by package, once everything is there
_TORCH_INDEX = "TORCH_INDEX"  # environment variable, as in the Makefile
_PIP = ("-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check", "--timeout", "15")
_INSTALL_TIMEOUT_S = 1200.0


class InstallationError(VipRayError):
    """An environment could not be made."""


@dataclass(frozen=True)
class Environment:
    """An environment that is complete: its Python, and the version of each package."""

    python: Path
    versions: dict[str, str]


def ensure_environment(name: str, requirements: Sequence[str], cache_dir: str = CACHE_DIR) -> Environment:
    """Return the environment that holds `requirements`, made now if it is not there yet.

    Args:
        name: beginning of the folder's name.
        requirements: pinned, e.g. `trl==1.16.0`. `torch==…` is installed first and without its dependencies: a build
            for CPUs is asked of pip as the user configured it, then of PyTorch's index for that build.
        cache_dir: where environments are kept.

    Raises:
        InstallationError: pip failed, e.g. without a network; with its last word.
    """
    folder = environment_folder(name, requirements, cache_dir)
    folder.parent.mkdir(parents=True, exist_ok=True)
    stamp, python = folder / STAMP, folder / "bin" / "python"
    with FileLock(f"{folder}.lock"):
        if not (stamp.is_file() and python.exists()):  # the Python that it was made from may be gone
            stamp.unlink(missing_ok=True)
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            _install(python, requirements)
            listed = json.loads(_run([str(python), "-m", "pip", "list", "--format", "json"]))
            stamp.write_text(json.dumps({package["name"]: package["version"] for package in listed}))
        return Environment(python, json.loads(stamp.read_text()))


def environment_folder(name: str, requirements: Sequence[str], cache_dir: str = CACHE_DIR) -> Path:
    """Where the environment lies or would lie."""
    key = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:8]
    return Path(cache_dir).expanduser() / f"{name}-{key}"


def _install(python: Path, requirements: Sequence[str]) -> None:
    for torch in (requirement for requirement in requirements if requirement.startswith("torch==")):
        _install_torch(python, torch)
    _run([str(python), *_PIP, "--retries", "1", *requirements])


def _install_torch(python: Path, requirement: str) -> None:
    pip = [str(python), *_PIP, "--no-deps", requirement]
    build = requirement.partition("+")[2]  # a local version: PyPI does not have it
    try:
        _run([*pip, "--retries", "0"])
    except InstallationError:
        if not build:
            raise
        index = os.environ.get(_TORCH_INDEX, f"https://download.pytorch.org/whl/{build}")
        _run([*pip, "--retries", "1", "--index-url", index])


def _run(command: list[str]) -> str:
    """Run a command and return its output; raise with the last error that it wrote."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise InstallationError(f"pip did not end within {_INSTALL_TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        raise InstallationError((errors or lines or [f"status {done.returncode} of {command[0]}"])[-1])
    return done.stdout
