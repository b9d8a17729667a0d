"""Make a model of a checkpoint: `vipray export CHECKPOINT FOLDER`.

Writes a Hugging Face folder that transformers and vLLM load. In bfloat16 it holds the very numbers that the engines
sampled with at that version; in float32 the master weights that the optimiser moved.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jobs.command import exit_status


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.export") -> int:
    """Parse the command line and carry it out; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="e.g. outputs/demo/checkpoints/step-000020")
    parser.add_argument("folder", type=Path, help="to be made")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--cache-dir", default="~/.cache/vipray", help="where a GGUF file was unpacked")
    return exit_status(command, parser.parse_args(argv))


def command(args: argparse.Namespace) -> int:
    """Export and say what came out."""
    from vipray.learner.export import export_checkpoint

    manifest = export_checkpoint(args.checkpoint, args.folder, dtype=args.dtype, cache_dir=args.cache_dir)
    Console(highlight=False, markup=False, soft_wrap=True).print(
        f"{args.folder}: {manifest.model} after {manifest.step} steps, {args.dtype}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
