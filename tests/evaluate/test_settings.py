from __future__ import annotations

from typing import Any

import pytest

from georoutenet.decode.decoding import Decoding
from georoutenet.errors import InputError
from georoutenet.evaluate.settings import Settings, header_of, parse_decoder, settings_of


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"statistics": "x"}, "unknown statistics 'x'; allowed: frozen, batch"),
        ({"limit": 0}, "limit must be"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"batch": 0}, "batch must be"),
        ({"improve": -1.0}, "improve must be a number of seconds >= 0, got -1.0"),
        ({"improve": float("inf")}, "improve must be"),
        ({"decoding": "beam"}, "decoding must be a Decoding, got 'beam'; parse_decoder reads text"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**settings)


def test_labels_tell_settings_apart() -> None:
    assert Settings().label == "greedy"
    assert Settings(Decoding("beam", width=100, views=8)).label == "beam-100-views-8"
    other = Settings(Decoding("sample", precision="bfloat16"), statistics="batch", limit=3)
    assert other.label == "sample-1000-batch-bfloat16-first-3"
    sparse = Decoding(views=8, candidates=32)
    assert Settings(sparse, limit=3).label == "greedy-views-8-candidates-32-first-3"
    assert Settings(sparse, improve=0.5).label == "greedy-views-8-improve-0.5-candidates-32"
    assert Settings(Decoding(views=2), improve=0.5, limit=3).label == "greedy-views-2-improve-0.5-first-3"


BEAM = Decoding("beam", views=8, finalists=2, dominance=True, length_weight=60.0)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(improve=2.0),
        Settings(Decoding("sample", width=64, views=3)),
        Settings(Decoding("beam", width=7, length_weight=0.25), improve=0.05),
        Settings(BEAM),
        Settings(BEAM, improve=0.5),
        Settings(BEAM, improve=1e-7),
    ],
)
def test_a_label_and_a_header_are_read_back(settings: Settings) -> None:
    assert parse_decoder(settings.decoder_label) == settings
    assert settings_of({**header_of(settings), "batch": "1"}) == Settings(
        settings.decoding, improve=settings.improve, batch=1
    )


def test_headers_of_old_files_lack_what_was_not_there() -> None:
    assert settings_of({"decoder": "greedy", "width": ""}) == Settings(batch=1)
    old = {"decoder": "beam", "width": "100", "statistics": "batch", "candidates": "5", "batch": "64"}
    expected = Settings(Decoding("beam", width=100, candidates=5), statistics="batch", batch=64)
    assert settings_of(old) == expected


def test_the_label_of_a_file_with_all_settings_is_read_back() -> None:
    text = "beam-8-views-4-improve-0.5-candidates-32-bfloat16"
    assert parse_decoder(text).label == text


def test_what_a_label_does_not_say_comes_from_the_others() -> None:
    others: dict[str, Any] = {"width": 5, "views": 2, "improve": 0.1, "limit": 9}
    named = Settings(Decoding("beam", width=5, views=2), improve=0.1, limit=9)
    assert parse_decoder("beam", **others) == named
    full = Settings(Decoding("beam", width=8, views=4), improve=0.1, limit=9)
    assert parse_decoder("beam-8-views-4", **others) == full


def test_settings_of_a_named_decoder_are_refused_by_a_label_that_says_more() -> None:
    alone = {"width": 5, "views": 2}
    expected = Settings(Decoding("beam", width=5, views=2), improve=0.5)
    assert parse_decoder("beam-improve-0.5", alone=alone) == expected
    with pytest.raises(InputError, match="'beam-8-improve-1' says all; give it without width, views"):
        parse_decoder("beam-8-improve-1", alone=alone)
    with pytest.raises(InputError, match="unknown decoder 'bean'; allowed"):
        parse_decoder("bean", alone=alone)
    assert parse_decoder("beam-8", alone={}) == Settings(Decoding("beam", width=8))


@pytest.mark.parametrize(
    "text", ["", "beam-", "beam-1000-8", "greedy-5", "beam-improve", "beam-improve-x", "-improve-1"]
)
def test_what_is_no_label(text: str) -> None:
    with pytest.raises(InputError, match="written like greedy, beam-100"):
        parse_decoder(text)


@pytest.mark.parametrize("header", [{"seed": "x"}, {"decoder": "greedy", "batch": ""}, {"improve": "a"}])
def test_a_header_that_cannot_be_read_is_an_input_error(header: dict[str, str]) -> None:
    with pytest.raises(InputError):
        settings_of(header)
