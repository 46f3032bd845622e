"""JSON from strangers: what is read and what is refused."""

from __future__ import annotations

import pytest

from georoutenet.errors import InputError
from georoutenet.io.strict_json import DEEPEST, parse_json


def test_json_is_read() -> None:
    assert parse_json('{"a": [1, 2.5, null], "b": {"a": "x"}}') == {"a": [1, 2.5, None], "b": {"a": "x"}}
    assert parse_json(b"[true]") == [True]


@pytest.mark.parametrize("text", ["", "{", "[1,]", b"\xff\xfe\xfa", "9" * 5000, "\x00"])
def test_other_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(InputError, match="not JSON"):
        parse_json(text)


def test_a_key_twice_is_refused() -> None:
    """Two readers could take a different one of the two values."""
    with pytest.raises(InputError, match="'a' twice"):
        parse_json('[{"a": 1, "b": 2, "a": 1}]')


def test_nesting_is_bounded() -> None:
    parse_json("[" * DEEPEST + "]" * DEEPEST)
    for depth in (DEEPEST + 1, 500, 200_000):
        with pytest.raises(InputError, match="nested deeper"):
            parse_json("[" * depth + "]" * depth)
