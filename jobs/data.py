"""Show what a configuration would train on: `vipray data CONFIG [key=value …]`; nothing is started or written.

Reads, tokenises and checks the prompts as `vipray train` does, and prints what became of the rows of each task and
file, counts and lengths by task, and examples as the policy is shown them. With --log also how often the prompts were
solved in an earlier run (its folder or its allocations.parquet) or in a log of pass rates (.json). Where the log's ids
leave out the label of a file or task, LABEL says which one it is of: --log train=rates.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.command import exit_status
from jobs.prompts import ChatTokenizer, load_prompt_set
from vipray.config import load_config
from vipray.data.base_rates import BaseRates, read_base_rates
from vipray.data.build import PromptSetReport, Reason
from vipray.data.prompts import PromptSet
from vipray.errors import ConfigError
from vipray.learner.model_folder import check_model_source

_QUANTILES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "longest": 1.0}
_SHOWN_CHARACTERS = 1200  # of an example
_PLAIN_WIDTH = 120  # of tables in a pipe or a file


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.data") -> int:
    """Parse the command line and carry it out; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="YAML file, e.g. conf/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the file's")
    parser.add_argument("--log", metavar="[LABEL=]LOG", help="earlier run, or pass rates by prompt (.json)")
    parser.add_argument("--trials", type=int, default=8, help="rollouts of a visit in a .json log (default 8)")
    parser.add_argument("--examples", type=int, default=1, metavar="N", help="examples of each task (default 1)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return exit_status(command, parser.parse_intermixed_args(argv))


def command(args: argparse.Namespace) -> int:
    """Read the prompts and print what they are."""
    if args.examples < 0:
        raise ConfigError(f"--examples must be >= 0, got {args.examples}")
    config = load_config(args.config, args.overrides)
    check_model_source(config.model.path)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, soft_wrap=True, markup=False, width=_PLAIN_WIDTH)
    prompts, report, tokenizer = load_prompt_set(config, console)
    rates = None if args.log is None else _base_rates(args.log, prompts, args.trials)
    console.print(_source_table(report))
    console.print(_task_table(prompts))
    if rates is not None:
        console.print(_rate_table(rates))
    console.print(
        f"{len(prompts)} prompts, {len(prompts) / config.allocation.prompts_per_batch:.1f} steps an epoch at "
        f"allocation.prompts_per_batch={config.allocation.prompts_per_batch}; fingerprint {prompts.fingerprint[:16]}"
    )
    _print_examples(console, prompts, tokenizer, args.examples)
    if args.json is not None:
        _write_json(args.json, _as_json(prompts, report, rates))
    return 0


def _base_rates(log: str, prompts: PromptSet, trials: int) -> BaseRates:
    label, _, path = ("", "", log) if Path(log).exists() else log.rpartition("=")
    return read_base_rates(Path(path), prompts, trials=trials, label=label)


def _source_table(report: PromptSetReport) -> Table:
    """What became of the rows, source by source; a column for each reason that occurred."""
    reasons = [reason for reason in Reason if report.num_dropped(reason)]
    table = _table("Rows", "source", ["read", "kept", *(str(reason) for reason in reasons)])
    for source in report.sources:
        dropped = [source.dropped.get(reason, 0) for reason in reasons]
        table.add_row(Text(source.label), *(str(count) for count in (source.num_read, source.num_kept, *dropped)))
    if len(report.sources) > 1:
        table.add_section()
        dropped = [report.num_dropped(reason) for reason in reasons]
        table.add_row("all", *(str(count) for count in (report.num_read, report.num_kept, *dropped)))
    return table


def _task_table(prompts: PromptSet) -> Table:
    table = _table("Prompts, and their tokens after the chat template", "task", ["verifier", "prompts", *_QUANTILES])
    groups = _lengths(prompts)
    for (task, verifier), lengths in groups.items():
        table.add_row(Text(task), verifier, str(len(lengths)), *(str(q) for q in _quantiles(lengths).values()))
    if len(groups) > 1:
        table.add_section()
        every = np.concatenate(list(groups.values()))
        verifiers = ", ".join(f"{name} {count}" for name, count in _verifiers(prompts).items())
        table.add_row("all", verifiers, str(len(every)), *(str(q) for q in _quantiles(every).values()))
    return table


def _rate_table(rates: BaseRates) -> Table:
    headings = ["prompts", "in the log", "mean rate", "never solved", "always solved", "rollouts"]
    table = _table(f"Success in {rates.name}", "task", headings)
    for task in rates.tasks:
        shares = [f"{value:.3f}" if task.num_seen else "-" for value in (task.mean, task.never, task.always)]
        table.add_row(Text(task.task), str(task.num_prompts), str(task.num_seen), *shares, str(task.num_trials))
    return table


def _table(title: str, first: str, others: Sequence[str]) -> Table:
    table = Table(title=Text(title), title_justify="left")
    table.add_column(first, overflow="fold", min_width=8)
    for heading in others:
        table.add_column(heading, justify="left" if heading == "verifier" else "right")
    return table


def _lengths(prompts: PromptSet) -> dict[tuple[str, str], Any]:
    """Tokens of each prompt by task and verifier."""
    columns = (prompts.table.column(name).to_pylist() for name in ("task", "verifier"))
    lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in prompts.table.column("token_ids").chunks])
    groups: dict[tuple[str, str], list[int]] = {}
    for task, verifier, length in zip(*columns, lengths.tolist(), strict=True):
        groups.setdefault((task, verifier), []).append(length)
    return {key: np.array(values) for key, values in sorted(groups.items())}


def _quantiles(lengths: Any) -> dict[str, int]:
    return {name: int(np.quantile(lengths, q, method="higher")) for name, q in _QUANTILES.items()}


def _verifiers(prompts: PromptSet) -> dict[str, int]:
    return dict(sorted(Counter(prompts.table.column("verifier").to_pylist()).items()))


def _print_examples(console: Console, prompts: PromptSet, tokenizer: ChatTokenizer, num_examples: int) -> None:
    """The first prompts of each task, as the policy is shown them."""
    shown: Counter[str] = Counter()
    for prompt_id, task in prompts.task_of.items():
        if shown[task] >= num_examples:
            continue
        shown[task] += 1
        prompt, token_ids = prompts.prompt(prompt_id), prompts.token_ids(prompt_id)
        text = tokenizer.text(token_ids)
        cut = "" if len(text) <= _SHOWN_CHARACTERS else f"… ({len(text) - _SHOWN_CHARACTERS} more characters)"
        console.print(Text(f"\n{prompt_id} ({len(token_ids)} tokens, {prompt.verifier})", style="bold"))
        console.print(text[:_SHOWN_CHARACTERS] + cut)
        golds = " or ".join(repr(answer) for answer in (prompt.answer, *prompt.aliases))
        console.print(f"→ answer {golds}", style="dim")


def _as_json(prompts: PromptSet, report: PromptSetReport, rates: BaseRates | None) -> dict[str, Any]:
    return {
        "num_prompts": len(prompts),
        "num_read": report.num_read,
        "fingerprint": prompts.fingerprint,
        "sources": [
            {"label": source.label, "read": source.num_read, "kept": source.num_kept}
            | {"dropped": {reason.name.lower(): count for reason, count in source.dropped.items()}}
            for source in report.sources
        ],
        "places": {reason.name.lower(): list(places) for reason, places in report.places.items()},
        "notes": list(report.notes),
        "verifiers": _verifiers(prompts),
        "tasks": [
            {"task": task, "verifier": verifier, "prompts": len(lengths), "tokens": _quantiles(lengths)}
            for (task, verifier), lengths in _lengths(prompts).items()
        ],
        "success": None if rates is None else rates.as_json(),
    }


def _write_json(path: Path, values: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path} cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
