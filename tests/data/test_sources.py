from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.support import byte_tokens
from tests.shared_data import shared_data
from vipray.config import BadRowsConfig, ColumnsConfig, DataConfig, FileConfig, TaskConfig
from vipray.data.build import Reason, build_prompt_set
from vipray.data.prompts import Prompt
from vipray.data.sources import prompt_sources
from vipray.errors import ConfigError

CHAT = [{"role": "user", "content": "Where?"}]


def load(files, max_tokens=10_000, **settings):
    data = DataConfig(files=files, **settings)
    return build_prompt_set(prompt_sources(data), byte_tokens, max_tokens, bad_rows=data.bad_rows)


def verl(index, text, gold, **changes):
    return {
        "data_source": "math_set",
        "prompt": [{"role": "user", "content": text}],
        "ability": "MATH",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"index": index},
    } | changes


def write(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def prompts_of(prompt_set):
    return [prompt_set.prompt(prompt_id) for prompt_id in prompt_set.prompt_ids]


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_the_schema_of_verl(tmp_path, name):
    system = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "3+3?"}]
    rows = [verl(5, "2+2?", "034"), verl(7, "3+3?", "6", prompt=system, data_source="openai/gsm8k")]
    kept, _ = load({"train": FileConfig(write(tmp_path / name, rows))})
    assert prompts_of(kept) == [
        Prompt("train/5", "math_set", 0, "2+2?", "034", "math"),
        Prompt("train/7", "openai/gsm8k", 1, "3+3?", "6", "gsm8k"),
    ]
    assert kept.token_ids("train/7") == list(b"Be short.3+3?")


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_gsm8k(tmp_path, name):
    rows = [{"question": "How many?", "answer": "He has <<2*540=1080>>1,080.\n#### 1,080"}]
    kept, _ = load({"gsm": FileConfig(write(tmp_path / name, rows))})
    assert prompts_of(kept) == [Prompt("gsm/1", "gsm", 0, "How many?", "1,080", "gsm8k")]


def test_plain_columns_by_a_mapping_with_paths_into_objects(tmp_path):
    rows = [
        {"q": "Who?", "a": {"text": "X"}, "kind": "people", "key": 3, "also": ["Y", "X"]},
        {"q": CHAT, "a": {"text": 12345678901234567890}, "kind": None, "key": "z", "also": None},
    ]
    columns = ColumnsConfig("q", "a.text", "kind", "key", "also")
    kept, _ = load({"qa": FileConfig(write(tmp_path / "x.jsonl", rows), columns=columns, verifier="qa")})
    assert prompts_of(kept) == [
        Prompt("qa/3", "people", 0, "Who?", "X", "qa", ("Y",)),
        Prompt("qa/z", "qa", 1, "Where?", "12345678901234567890", "qa"),
    ]


def test_numbers_in_files_keep_their_digits(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"prompt": "a", "answer": 27.0}\n{"prompt": "b", "answer": 1e400}\n{"prompt": "c", "answer": "034"}\n'
    )
    kept, _ = load({"x": FileConfig(str(path), verifier="math")})
    assert [p.answer for p in prompts_of(kept)] == ["27.0", "1e400", "034"]
    whole = write(tmp_path / "y.parquet", [{"prompt": "a", "answer": 2**62 + 1}])
    assert prompts_of(load({"y": FileConfig(whole, verifier="math")})[0])[0].answer == str(2**62 + 1)
    floats = write(tmp_path / "z.parquet", [{"prompt": "a", "answer": 27.0}])
    with pytest.raises(ConfigError, match=r"z\.parquet row 1: the answer 27\.0 is stored as a binary float"):
        load({"z": FileConfig(floats, verifier="math")})


def test_several_files_and_tasks_in_one_set_have_distinct_ids(tmp_path):
    one = write(tmp_path / "one.jsonl", [verl(0, "a", "1"), verl(1, "b", "2")])
    two = write(tmp_path / "two.parquet", [verl(0, "c", "3"), verl(1, "a", "1")])
    kept, report = load(
        {"one": FileConfig(one), "two": FileConfig(two, task="second")}, tasks={"sums": TaskConfig("chain_sum", 2)}
    )
    assert kept.prompt_ids == ["sums/0000", "sums/0001", "one/0", "one/1", "two/0"]
    assert list(kept.task_of.values()) == ["sums", "sums", "math_set", "math_set", "second"]
    assert report.num_dropped(Reason.DUPLICATE) == 1
    assert kept.table.column("verifier").to_pylist() == ["reasoning_gym"] * 2 + ["math"] * 3


def test_the_files_of_a_pattern_are_numbered_through(tmp_path):
    for shard in range(3):
        write(tmp_path / f"part-{shard}.jsonl", [{"prompt": f"q{shard}.{i}", "answer": "1"} for i in range(2)])
    kept, report = load({"x": FileConfig(f"{tmp_path}/part-*.jsonl", verifier="math")})
    assert kept.prompt_ids == [f"x/{n}" for n in range(1, 7)] and len(report.sources) == 1
    assert kept.texts == ["q0.0", "q0.1", "q1.0", "q1.1", "q2.0", "q2.1"]


def test_the_system_prompt_is_part_of_the_tokens_and_not_of_the_text(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"prompt": "a", "answer": "1"}])
    kept, _ = load({"x": FileConfig(path, verifier="math")}, system_prompt="S.")
    assert kept.texts == ["a"] and kept.token_ids("x/1") == list(b"S.a")


MATH = {"verifier": "math"}
NO_GOLD = "reward_model must be an object with a ground_truth"


@pytest.mark.parametrize(
    ("rows", "settings", "words"),
    [
        ([{"text": "a"}], {}, r"row 1 is neither in the schema of verl .*it has text; name its columns.*files\.x"),
        ([{"question": "a", "answer": "7"}], {}, r"row 1 is neither .*'#### n'.*it has question, answer"),
        (
            [{"question": "a", "answer": "#### 7"}, {"question": "b", "answer": "8"}],
            {},
            "row 2: .*ends in '#### n', got '8'",
        ),
        (
            [{"question": "a", "answer": "#### 7"}, {"question": "b", "answer": "####"}],
            {},
            "row 2 is a row without an answer",
        ),
        ([{"question": "a", "answer": None}], {"format": "gsm8k"}, "row 1 is a row without an answer"),
        ([{"prompt": "a", "answer": "1"}], {}, r"row 1: nothing tells which verifier .*set data\.files\.x\.verifier"),
        ([{"prompt": "a", "answer": "1"}, {"prompt": "b"}], MATH, "row 2 has no answer: it has prompt"),
        ([{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": None}], MATH, "row 2 is a row without an answer"),
        ([{"prompt": "a", "answer": True}], MATH, "row 1: the answer must be a string or a number, got True"),
        ([{"prompt": 3, "answer": "1"}], MATH, "row 1: the prompt must be a text or a list"),
        ([verl(0, "a", "1", reward_model="1")], {}, f"row 1: {NO_GOLD}"),
        ([verl(0, "a", "1", reward_model={"style": "rule"})], {}, f"row 1: {NO_GOLD}"),
        ([verl(0, "a", "1", reward_model={"style": "model", "ground_truth": "x"})], {}, "row 1: .*asks for a reward"),
        ([verl(0, "a", "1", ability="code")], {}, "row 1: nothing tells which verifier scores it .task 'math_set'."),
        ([verl(0, "a", "1", data_source=["x"])], {}, "row 1: data_source must be a text or a whole number"),
        ([{"p": "a", "a": "1"}], {"columns": ColumnsConfig("p", "b"), **MATH}, "row 1 has no b: it has p, a"),
        ([{"p": "a", "a": "1"}], {"columns": ColumnsConfig("p", "a", id="p.x"), **MATH}, "row 1 has no p.x"),
        ([], {}, "holds no row"),
    ],
)
def test_rows_that_are_wrong_are_refused_with_file_and_row(tmp_path, rows, settings, words):
    path = write(tmp_path / "x.jsonl", rows)
    with pytest.raises(ConfigError, match=rf"x\.jsonl.*{words}") as refused:
        load({"x": FileConfig(path, **settings)})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("verifier", ["math", "gsm8k", "exact", "multiple_choice"])
def test_several_answers_are_refused_where_the_verifier_takes_one(tmp_path, verifier):
    rows = [{"prompt": "a", "answer": ["2"]}, {"prompt": "b", "answer": ["2", "4"]}]
    path = write(tmp_path / "x.jsonl", rows)
    with pytest.raises(ConfigError, match=rf"x\.jsonl row 2 has 2 answers, .* verifier {verifier} takes one"):
        load({"x": FileConfig(path, verifier=verifier)})
    assert [p.aliases for p in prompts_of(load({"x": FileConfig(path, verifier="qa")})[0])] == [(), ("4",)]
    golds = write(tmp_path / "y.parquet", [verl(0, "a", ["1331", "1728"])])
    with pytest.raises(ConfigError, match=r"y\.parquet row 1 has 2 answers"):
        load({"y": FileConfig(golds)})


def test_rows_without_an_id_among_others_get_one_that_is_no_number(tmp_path):
    rows = [{"prompt": "a", "answer": "1", "id": None}, {"prompt": "b", "answer": "1", "id": 1}]
    path = write(tmp_path / "x.jsonl", rows)
    kept, _ = load({"x": FileConfig(path, columns=ColumnsConfig(id="id"), verifier="math")})
    assert kept.prompt_ids == ["x/row-1", "x/1"]


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_whole_numbers_are_ids_however_they_are_stored(tmp_path, name):
    rows = [verl(1.0, "a", "1"), verl(1000.0, "b", "1"), verl(None, "c", "1")]
    kept, _ = load({"x": FileConfig(write(tmp_path / name, rows))})
    assert kept.prompt_ids == ["x/1", "x/1000", "x/3"]
    with pytest.raises(ConfigError, match=r"extra_info\.index must be a text or a whole number, got 1\.5"):
        load({"x": FileConfig(write(tmp_path / name, [verl(1.5, "a", "1")]))})


def test_a_prompt_that_holds_messages_as_json_is_read_as_messages(tmp_path):
    talk = [{"role": "system", "content": "S."}, {"role": "user", "content": "Where?"}]
    rows = [{"prompt": json.dumps(talk), "answer": "1"}, {"prompt": '[1, "role"]', "answer": "1"}]
    kept, _ = load({"x": FileConfig(write(tmp_path / "x.parquet", rows), verifier="math")})
    assert kept.texts == ["Where?", '[1, "role"]'] and kept.token_ids("x/1") == list(b"S.Where?")


def test_columns_that_look_useful_and_are_not_used_are_named(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"prompt": "a", "answer": "1", "id": "k", "task": "t"}])
    _, report = load({"x": FileConfig(path, verifier="math")})
    assert report.lines()[1:] == [
        "data.files.x: no use is made of its column task or id: to change that, set data.files.x.columns.task=task, "
        "data.files.x.columns.id=id"
    ]
    _, report = load({"x": FileConfig(path, columns=ColumnsConfig(task="task", id="id"), verifier="math")})
    assert report.notes == ()


def test_a_parquet_file_without_the_answers_column_is_refused(tmp_path):
    path = write(tmp_path / "x.parquet", [{"prompt": "a", "label": "1"}])
    with pytest.raises(ConfigError, match=r"x\.parquet row 1 has no answer: it has prompt"):
        load({"x": FileConfig(path, format="columns", verifier="math")})


def test_paths_that_lead_nowhere_are_refused_before_anything_is_read(tmp_path):
    for path, words in (
        (f"{tmp_path}/none.jsonl", r"data\.files\.x\.path=.*none\.jsonl does not exist"),
        (f"{tmp_path}/*.jsonl", r"data\.files\.x\.path=.*matches no file"),
        (str(tmp_path), r"data\.files\.x\.path=.*is no file: name one, or a pattern"),
    ):
        with pytest.raises(ConfigError, match=words):
            prompt_sources(DataConfig(files={"x": FileConfig(path)}))


def test_two_prompts_with_one_id_of_an_id_column_are_refused_and_copies_of_one_are_not(tmp_path):
    columns = ColumnsConfig(id="id")
    rows = [{"prompt": "a", "answer": "1", "id": "k"}, {"prompt": "a", "answer": "1", "id": "k"}]
    path = write(tmp_path / "x.jsonl", rows)
    assert load({"x": FileConfig(path, columns=columns, verifier="math")})[0].prompt_ids == ["x/k"]
    write(tmp_path / "x.jsonl", [*rows, {"prompt": "b", "answer": "1", "id": "k"}])
    with pytest.raises(ConfigError, match=r"x\.jsonl row 3: the id x/k is that of .*x\.jsonl row 1 too"):
        load({"x": FileConfig(path, columns=columns, verifier="math")})


@pytest.mark.parametrize(
    ("name", "settings", "num_rows", "num_kept"),
    [
        ("gsm8k/train.jsonl", {}, 7473, 7473),
        ("gsm8k/test.jsonl", {}, 1319, 1319),
        ("aime24/test.jsonl", {"columns": ColumnsConfig("problem", id="id"), "verifier": "math"}, 30, 30),
        ("amc23/test.jsonl", {"columns": ColumnsConfig("question", id="id"), "verifier": "math"}, 40, 40),
        ("mawps/singleop.jsonl", {"columns": ColumnsConfig("input", "target"), "verifier": "math"}, 562, 531),
        ("pass_rates/one_shot_rlvr_prompts.parquet", {}, 1209, 1206),
        ("pass_rates/deepscaler_uniform.parquet", {}, 10_000, 7595),
    ],
)
def test_real_files_are_read_whole(name, settings, num_rows, num_kept):
    path = shared_data(name)
    kept, report = load({"x": FileConfig(str(path), **settings)}, bad_rows=BadRowsConfig(missing_answer="drop"))
    assert report.num_read == num_rows
    assert len(kept) == num_kept
    assert report.num_kept + sum(report.num_dropped(reason) for reason in Reason) == num_rows
    assert len(set(kept.prompt_ids)) == len(kept) == len(set(kept.texts))


def test_the_golds_of_real_files_are_those_of_the_files():
    path = shared_data("amc23/test.jsonl")
    kept, _ = load({"x": FileConfig(str(path), columns=ColumnsConfig("question"), verifier="math")})
    assert {prompt.answer[-2:] for prompt in prompts_of(kept)} == {".0"}  # as they are written there
    raw = [json.loads(line)["answer"] for line in shared_data("gsm8k/train.jsonl").read_text().splitlines()]
    kept, _ = load({"g": FileConfig(str(shared_data("gsm8k/train.jsonl")))})
    assert [f"#### {prompt.answer}" for prompt in prompts_of(kept)] == [text.splitlines()[-1] for text in raw]
