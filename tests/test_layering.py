"""Who may import whom: proven by importing each module of the library alone, and by reading its source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vipray

ROOT = Path(vipray.__file__).parent
MODULES = sorted(
    ".".join(["vipray", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
)
HOMES = {"torch": "learner", "vllm": "inference"}


def _imports(path: Path) -> set[str]:
    """Top-level packages that a file imports anywhere, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_packages_stay_in_their_rooms(path):
    imports = _imports(path)
    assert not imports & {"ray", "actors", "jobs"}
    for package, home in HOMES.items():
        assert package not in imports or path.is_relative_to(ROOT / home), f"{path} imports {package}"


def test_importing_the_library_loads_neither_ray_nor_torch_nor_vllm():
    pure = [module for module in MODULES if module.split(".")[1:2] not in (["learner"], ["inference"])]
    assert len(pure) > 20
    code = (
        "import importlib, sys\n"
        f"for module in {pure!r}:\n"
        "    importlib.import_module(module)\n"
        "    loaded = {'ray', 'torch', 'vllm'} & set(sys.modules)\n"
        "    assert not loaded, (module, loaded)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_only_spawn_makes_ray_actors():
    root = ROOT.parent
    makers = [
        path.relative_to(root)
        for folder in ("actors", "jobs")
        for path in sorted((root / folder).rglob("*.py"))
        if "ray.remote" in path.read_text()
    ]
    assert makers == [Path("actors/spawn.py")]
