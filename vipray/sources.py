"""Where a file or folder that the configuration names really is.

A source is a path, or `package:NAME/PATH` for something inside an installed package: that is how the demo finds its
model and its encoder without a download.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from vipray.errors import ConfigError

_PACKAGE = "package:"


def resolve_source(setting: str, source: str) -> Path:
    """Return the existing path behind `source`.

    Args:
        setting: dotted key of the setting, for the message.
        source: a path, or `package:NAME/PATH`.

    Raises:
        ConfigError: nothing is there.
    """
    if not source.startswith(_PACKAGE):
        path = Path(source).expanduser()
        if not path.exists():
            raise ConfigError(f"{setting}={source} does not exist: give a folder or file that is on this machine")
        return path
    name, _, inside = source.removeprefix(_PACKAGE).partition("/")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        remedy = "install the demo extra or give a path"
        raise ConfigError(f"{setting}={source}: package {name!r} is not installed; {remedy}")
    path = Path(spec.submodule_search_locations[0]) / inside
    if not path.exists():
        raise ConfigError(f"{setting}={source}: package {name!r} has no {inside!r}")
    return path
