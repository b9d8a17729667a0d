"""Prompts as chat messages: what they may hold, what of them the user said, and which of them are the same."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import Any, NamedTuple

from vipray.data.golds import encodable
from vipray.errors import ConfigError

ROLES = ("system", "developer", "user", "assistant", "tool")
_SYSTEM_ROLES = ("system", "developer")
_LAST_ROLES = ("user", "tool")  # the policy answers one of these
_INVISIBLE = ("Cc", "Cf")  # Unicode categories of control and formatting characters


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str


Messages = tuple[Message, ...]


def as_messages(value: Any, place: str) -> Messages:
    """Read a prompt from a file: a text that the user says, a list of `{"role": …, "content": …}`, or JSON of one.

    Args:
        value: what the file holds; None is an empty prompt.
        place: file and row, for messages.

    Raises:
        ConfigError: neither, a role that is not one of `ROLES`, or nobody is left to be answered.
    """
    if value is None:
        return ()
    if type(value) is str:  # a number in JSON is a subclass of str
        turns = _written_as_json(value)
        if turns is not None:
            return as_messages(turns, place)
        return (Message("user", encodable(value, place)),)
    if not isinstance(value, list):
        raise ConfigError(f"{place}: the prompt must be a text or a list of chat messages, got {_shown(value)}")
    messages = tuple(_message(item, place) for item in value)
    if messages and messages[-1].role not in _LAST_ROLES:
        raise ConfigError(f"{place}: the last message of a prompt must be the user's, got role {messages[-1].role!r}")
    return messages


def _written_as_json(text: str) -> list[Any] | None:
    """Return the chat messages that a text is the JSON of, as files without nested columns have them; else None."""
    if not text.lstrip().startswith("[") or '"role"' not in text:
        return None
    try:
        turns = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(turns, list) or not turns:
        return None
    return turns if all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in turns) else None


def with_system(messages: Messages, system_prompt: str | None) -> Messages:
    """Put a system prompt before messages that have none of their own."""
    if system_prompt is None or any(message.role in _SYSTEM_ROLES for message in messages):
        return messages
    return (Message("system", system_prompt), *messages)


def user_text(messages: Messages) -> str:
    """What the user says, turn by turn."""
    return "\n".join(message.content for message in messages if message.role == "user")


def is_blank(text: str) -> bool:
    r"""Whether a text shows nothing.

    >>> is_blank(" \n"), is_blank("\u200b"), is_blank("0")
    (True, True, False)
    """
    return not text.strip() or all(c.isspace() or unicodedata.category(c) in _INVISIBLE for c in text)


def conversation_key(messages: Messages) -> bytes:
    r"""Digest that equal conversations share: the same roles and texts, but for white space around a text.

    Many chat templates strip that white space: the policy could not tell such prompts apart.

    >>> conversation_key((Message("user", "2+2?"),)) == conversation_key((Message("user", " 2+2?\n"),))
    True
    >>> conversation_key((Message("user", "2+2?"),)) == conversation_key((Message("user", "2 + 2?"),))
    False
    """
    digest = hashlib.sha256()
    for message in messages:
        content = message.content.replace("\r\n", "\n").strip().encode()
        digest.update(f"{message.role} {len(content)} ".encode())
        digest.update(content)
    return digest.digest()[:16]


def _message(item: Any, place: str) -> Message:
    if not isinstance(item, dict) or not {"role", "content"} <= item.keys():
        raise ConfigError(f"{place}: a chat message must have a role and a content, got {_shown(item)}")
    if item["role"] not in ROLES:
        raise ConfigError(
            f"{place}: the role of a chat message must be one of {', '.join(ROLES)}, got {item['role']!r}"
        )
    content = "" if item["content"] is None else item["content"]
    if type(content) is not str:
        raise ConfigError(f"{place}: the content of a chat message must be a text, got {_shown(content)}")
    return Message(item["role"], encodable(content, place))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
