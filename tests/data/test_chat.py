from __future__ import annotations

import pytest

from vipray.data.chat import Message, as_messages, conversation_key, is_blank, user_text, with_system
from vipray.data.golds import JsonNumber
from vipray.errors import ConfigError

TALK = (Message("system", "Be short."), Message("user", "2+2?"), Message("assistant", "4"), Message("user", "3+3?"))


def as_dicts(messages):
    return [message._asdict() for message in messages]


def test_messages_keep_their_roles_and_the_text_is_what_the_user_says():
    assert as_messages(as_dicts(TALK), "f row 1") == TALK
    assert user_text(TALK) == "2+2?\n3+3?"
    assert as_messages("2+2?", "f row 1") == (Message("user", "2+2?"),)
    assert as_messages(None, "f row 1") == () == as_messages([], "f row 1")


def test_a_system_prompt_goes_before_messages_that_bring_none():
    assert with_system(TALK, "Other.") == TALK
    assert with_system(TALK[1:2], "Other.") == (Message("system", "Other."), TALK[1])
    assert with_system(TALK[1:2], None) == TALK[1:2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (JsonNumber("3"), "must be a text or a list of chat messages"),
        ({"role": "user"}, "must be a text or a list of chat messages"),
        (["hello"], "must have a role and a content, got 'hello'"),
        ([{"role": "user"}], "must have a role and a content"),
        (
            [{"role": "human", "content": "x"}],
            "role of a chat message must be one of system, developer, user.*got 'human'",
        ),
        ([{"role": ["user"], "content": "x"}], "role of a chat message must be one of"),
        ([{"role": "user", "content": [{"type": "image"}]}], "content of a chat message must be a text"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "got role 'assistant'"),
        ("\udc00", "half of a surrogate pair"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_place(value, words):
    with pytest.raises(ConfigError, match=f"^f row 3: .*{words}"):
        as_messages(value, "f row 3")


def test_conversations_are_the_same_by_roles_and_texts():
    base = conversation_key(TALK)
    assert conversation_key((*TALK[:3], Message("user", " 3+3?\r\n"))) == base
    different = [
        TALK[1:],
        (*TALK[:3], Message("user", "3+3? ")._replace(content="3 +3?")),
        (Message("developer", "Be short."), *TALK[1:]),
        (Message("user", "Be short.\n2+2?"), *TALK[2:]),
    ]
    assert len({base, *map(conversation_key, different)}) == 5


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u00a0", "\u200b\ufeff", "\x00"])
def test_blank_texts(text):
    assert is_blank(text) and not is_blank(text + "0")
