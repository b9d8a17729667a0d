from __future__ import annotations

import pyarrow as pa

from tests.data.support import prompt_set
from vipray.data.prompts import PROMPT_SCHEMA, Prompt, PromptSet

PROMPTS = [
    Prompt("t/0", "t", 0, "How many?", "034", "math"),
    Prompt("t/1", "u", 1, "Which city?", "NYC", "qa", ("New York", "Big Apple")),
]


def table(rows):
    return pa.Table.from_pylist(rows, schema=PROMPT_SCHEMA)


def row(place, **changes):
    values = {"prompt_id": f"t/{place}", "task": "t", "index": place, "text": f"q{place}", "answer": "1"}
    return values | {"verifier": "math", "aliases": [], "token_ids": [place, 7]} | changes


def test_a_prompt_comes_back_as_it_went_in():
    kept, _ = prompt_set(PROMPTS)
    assert [kept.prompt(p) for p in kept.prompt_ids] == PROMPTS
    assert kept.task_of == {"t/0": "t", "t/1": "u"}
    assert kept.texts == ["How many?", "Which city?"]
    assert kept.token_ids("t/1") == list(b"Which city?")
    assert kept.table.schema == PROMPT_SCHEMA


def test_the_fingerprint_does_not_depend_on_how_the_table_is_cut():
    rows = [row(i, aliases=["x"] * (i % 3), token_ids=list(range(i % 5))) for i in range(20)]
    whole = PromptSet(table(rows))
    cut = PromptSet(pa.concat_tables([table(rows[:1]), table([]), table(rows[1:13]), table(rows[13:])]))
    sliced = PromptSet(table([row(99), *rows]).slice(1))
    assert whole.fingerprint == cut.fingerprint == sliced.fingerprint
    assert len(whole.fingerprint) == 64


def test_every_change_changes_the_fingerprint():
    rows = [row(0), row(1)]
    changed = [
        rows[::-1],
        rows[:1],
        [*rows, row(2)],
        *(
            [row(0, **change), rows[1]]
            for change in (
                {"prompt_id": "t/x"},
                {"task": "u"},
                {"index": 5},
                {"text": "q0 "},
                {"answer": "01"},
                {"verifier": "exact"},
                {"aliases": [""]},
                {"aliases": ["1"]},
                {"token_ids": [0, 8]},
                {"token_ids": [0]},
            )
        ),
        [row(0, text="q0q", token_ids=[0]), row(1, text="1", token_ids=[7, 1, 7])],  # the same letters, cut elsewhere
    ]
    prints = [PromptSet(table(each)).fingerprint for each in (rows, *changed)]
    assert len(set(prints)) == len(prints)
