"""Which rollouts share a micro-batch, and which rank computes it: decided from lengths alone, by every rank alike.

A unit is a prompt with some of its group's completions. Packed, a unit is [prompt, completion 1, …, completion n], the
prompt computed once, and a micro-batch is one row of several units. Plain, a unit's sequences are rows of a padded
micro-batch of their own. A group is one unit unless it exceeds the token limit of a micro-batch, or the ranks would be
unevenly loaded; then its prompt is repeated.

Legend: P tokens of a prompt, l tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingRollout:
    """One rollout as the loss sees it.

    Attributes:
        prompt_token_ids: what it was prompted with.
        completion_token_ids: l >= 1 tokens, as sampled.
        logprobs: l log-probabilities under the policy that sampled them.
        advantage: within its group.
        token_weight: share of each of its tokens in the loss.
        is_current: the learner's own version sampled it, from its first token on.
    """

    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    token_weight: float
    is_current: bool = True


@dataclass(frozen=True)
class Unit:
    """A prompt with some of its completions."""

    rollouts: tuple[TrainingRollout, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        return self.rollouts[0].prompt_token_ids

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion."""
        return [len(rollout.completion_token_ids) for rollout in self.rollouts]


@dataclass(frozen=True)
class PackingOptions:
    """How units and micro-batches are made.

    Attributes:
        packed: whether a group's completions share their prompt.
        max_tokens: most tokens of a micro-batch; a single rollout that is longer gets one of its own.
        pair_cost: cost of one attended pair of tokens, in tokens: attention's share in the model's arithmetic.
    """

    packed: bool
    max_tokens: int
    pair_cost: float = 0.0

    def tokens(self, prompt: int, lengths: Sequence[int]) -> int:
        """Tokens that the model computes for a unit."""
        if self.packed:
            return prompt + sum(lengths)
        return len(lengths) * (prompt + max(lengths, default=0))

    def cost(self, unit: Unit) -> float:
        """Cost of a unit, in tokens."""
        prompt, lengths = len(unit.prompt), unit.lengths
        prompts = 1 if self.packed else len(lengths)
        pairs = prompts * prompt * (prompt + 1) / 2 + sum(length * (prompt + (length + 1) / 2) for length in lengths)
        return self.tokens(prompt, lengths) + self.pair_cost * pairs


Row = tuple[Unit, ...]


@dataclass(frozen=True)
class Plan:
    """Micro-batches by rank; each rank has as many, since every pass is a collective.

    Attributes:
        rows: by rank; an empty row stands for a filler, which carries no weight.
        balance: mean load of the ranks over the largest, in (0, 1]; 1 leaves no rank idle.
    """

    rows: tuple[tuple[Row, ...], ...]
    balance: float


def plan_rows(groups: Sequence[Sequence[TrainingRollout]], options: PackingOptions, num_ranks: int = 1) -> Plan:
    """Split groups into units, units over ranks and each rank's into micro-batches.

    Units become smaller, from the token limit down by halves, as long as that lowers the largest load of a rank: a
    repeated prompt costs less than an idle rank.

    Raises:
        ValueError: rollouts of a group differ in their prompt.
    """
    best: tuple[float, list[list[Unit]]] | None = None
    limit = options.max_tokens
    while True:
        units = [unit for group in groups for unit in _split(group, options, limit)]
        shares = _share(units, options, num_ranks)
        largest = max(_load(share, options) for share in shares)
        if best is None or largest < best[0]:
            best = (largest, shares)
        if num_ranks == 1 or limit <= 1 or all(len(unit.rollouts) == 1 for unit in units):
            break
        limit //= 2
    largest, shares = best
    rows = [_rows(share, options) for share in shares]
    most = max(len(mine) for mine in rows)
    total = sum(_load(share, options) for share in shares)
    return Plan(
        rows=tuple(tuple(_filled(mine, most)) for mine in rows),
        balance=total / (num_ranks * largest) if largest else 1.0,
    )


def _split(group: Sequence[TrainingRollout], options: PackingOptions, limit: int) -> list[Unit]:
    """As few units as fit the limit, longest completions first so that plain rows are padded little."""
    units: list[list[TrainingRollout]] = []
    for rollout in sorted(group, key=lambda r: len(r.completion_token_ids), reverse=True):
        prompt = rollout.prompt_token_ids
        if prompt != group[0].prompt_token_ids:
            raise ValueError("the rollouts of a group must share their prompt")
        together = [*units[-1], rollout] if units else []
        lengths = [len(r.completion_token_ids) for r in together]
        if units and options.tokens(len(prompt), lengths) <= limit:
            units[-1].append(rollout)
        else:
            units.append([rollout])
    return [Unit(tuple(unit)) for unit in units]


def _share(units: Sequence[Unit], options: PackingOptions, num_ranks: int) -> list[list[Unit]]:
    """Give each unit, dearest first, to the rank that has least."""
    shares: list[list[Unit]] = [[] for _ in range(num_ranks)]
    load = [0.0] * num_ranks
    for unit in sorted(units, key=options.cost, reverse=True):
        rank = load.index(min(load))
        shares[rank].append(unit)
        load[rank] += options.cost(unit)
    return shares


def _rows(share: Sequence[Unit], options: PackingOptions) -> list[Row]:
    """Put units, dearest first, into the first row with room for them; plain units are rows of their own."""
    rows: list[list[Unit]] = []
    room: list[int] = []
    for unit in share:
        size = options.tokens(len(unit.prompt), unit.lengths)
        place = next((i for i, left in enumerate(room) if options.packed and size <= left), None)
        if place is None:
            rows.append([unit])
            room.append(options.max_tokens - size)
        else:
            rows[place].append(unit)
            room[place] -= size
    return [tuple(row) for row in rows]


def _filled(rows: Sequence[Row], count: int) -> list[Row]:
    """As many rows as `count`: rows of several units are cut in two before fillers are added."""
    filled = list(rows)
    while filled and len(filled) < count and len(widest := max(filled, key=len)) > 1:
        filled.remove(widest)
        filled += [widest[::2], widest[1::2]]
    return filled + [()] * (count - len(filled))


def _load(share: Sequence[Unit], options: PackingOptions) -> float:
    return sum(options.cost(unit) for unit in share)


def why_not_packed(config: object) -> str | None:
    """Reason why completions of a model cannot share their prompt; None if they can, as far as `config.json` tells.

    Full attention in every layer is needed: a sliding window would count the distance over the other completions, and
    a recurrent layer would carry its state from one completion into the next.
    """
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        other = sorted({kind for kind in layer_types if kind != "full_attention"})
        return f"it has layers of type {', '.join(other)}" if other else None
    if getattr(config, "sliding_window", None) is not None:
        return f"its attention has a sliding window of {config.sliding_window} tokens"  # type: ignore[attr-defined]
    if not hasattr(config, "num_attention_heads"):
        return "it is not known to attend in every layer"
    for name in ("alibi", "use_alibi", "position_embedding_type", "attn_layers", "layers_block_type", "mamba_d_state"):
        value = getattr(config, name, None)
        if value not in (None, False, "rotary", "absolute"):
            return f"its config.json says {name}={value!r}"
    return None
