"""Training steps of TRL's GRPOTrainer: `python trl_step.py TASK.json RESULT.json`, in an environment that holds TRL.

It imports nothing of this project. The task is the record that `jobs/bench/whole_step.py` writes; the result holds the
seconds of every step, from the start of its generation to the end of its optimiser step.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_PACKAGES = ("trl", "torch", "transformers", "accelerate", "datasets")


def final_number(completion: str) -> Decimal | None:
    """The last number of a completion, or of its last tagged answer; None where there is none."""
    tagged = _TAGGED.findall(completion)
    numbers = _NUMBER.findall(tagged[-1] if tagged else completion)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def exact_number(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Reward 1 for each completion (chat messages) whose final number is its answer, else 0."""
    return [
        float(final_number(completion[-1]["content"]) == Decimal(gold))
        for completion, gold in zip(completions, answer, strict=True)
    ]


def check_tokens(prompts: Sequence[Mapping[str, Any]], tokenizer: Any) -> None:
    """Raise ValueError if the chat template does not give each prompt the tokens that the other side was given."""
    for prompt in prompts:
        ids = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, return_dict=False)
        if list(ids) != prompt["token_ids"]:
            raise ValueError(f"the chat template gives other tokens for {prompt['messages']}")


def training_arguments(task: Mapping[str, Any], output_dir: Path) -> dict[str, Any]:
    """Arguments of `GRPOConfig`: the nearest to the task's loss, and the fastest on a CPU that are known here.

    All rollouts of a step are generated in one batch, trained on in micro-batches, and share one optimiser step.
    Activations fit into memory, so they are kept and not recomputed.
    """
    rollouts = task["prompts_per_step"] * task["rollouts_per_prompt"]
    return {
        "output_dir": str(output_dir),
        "max_steps": task["steps"],
        "per_device_train_batch_size": task["micro_batch"],
        "gradient_accumulation_steps": rollouts // task["micro_batch"],
        "num_generations": task["rollouts_per_prompt"],
        "max_completion_length": task["max_tokens"],
        "temperature": task["temperature"],
        "learning_rate": task["learning_rate"],
        "max_grad_norm": task["max_grad_norm"],
        "epsilon": task["clip_low"],
        "epsilon_high": task["clip_high"],
        "loss_type": "grpo",  # mean over rollouts of the mean over tokens
        "scale_rewards": "none",
        "beta": 0.0,
        "lr_scheduler_type": "constant",
        "shuffle_dataset": False,
        "seed": task["seed"],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32"},
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def train(task: Mapping[str, Any], output_dir: Path) -> dict[str, Any]:
    """Train for the task's steps; return their seconds, TRL's own log, and what was used."""
    import torch
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    class Clock(TrainerCallback):
        """Takes the time of every step."""

        def __init__(self) -> None:
            self.step_s: list[float] = []
            self._start = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self._start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.step_s.append(time.perf_counter() - self._start)

    torch.set_num_threads(task["threads"])
    tokenizer = AutoTokenizer.from_pretrained(task["model_folder"])
    check_tokens(task["prompts"], tokenizer)
    arguments, clock = training_arguments(task, output_dir), Clock()
    trainer = GRPOTrainer(
        model=task["model_folder"],
        reward_funcs=exact_number,
        args=GRPOConfig(**arguments),
        train_dataset=Dataset.from_list([{"prompt": p["messages"], "answer": p["answer"]} for p in task["prompts"]]),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    return {
        "step_s": clock.step_s,
        "log": [entry for entry in trainer.state.log_history if "reward" in entry],
        "arguments": arguments,
        "versions": {name: version(name) for name in _PACKAGES},
    }


def main(argv: Sequence[str]) -> None:
    """Carry out the task in the file named first; write the result to the one named second."""
    task, result = Path(argv[0]), Path(argv[1])
    found = train(json.loads(task.read_text()), result.parent / "trl")
    result.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
