from __future__ import annotations

import pytest

from georoutenet.errors import InputError
from georoutenet.evaluate.settings import Settings, parse_decoder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder": "best"}, "unknown decoder 'best'; allowed: greedy, sample, beam"),
        ({"statistics": "x"}, "unknown statistics 'x'; allowed: frozen, batch"),
        ({"precision": "int8"}, "unknown precision 'int8'; allowed: float32, bfloat16"),
        ({"width": 0}, "width must be a whole number of at least 1"),
        ({"limit": 0}, "limit must be"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"candidates": 0}, "candidates must be"),
        ({"batch": 0}, "batch must be"),
        ({"improve": -1.0}, "improve must be a number of seconds >= 0, got -1.0"),
        ({"improve": float("inf")}, "improve must be"),
        ({"decoder": "beam", "length_weight": -1.0}, "length_weight must be a number >= 0, got -1.0"),
        ({"length_weight": 60.0}, "length_weight and finalists are of beams, the decoder is greedy"),
        ({"decoder": "sample", "dominance": True}, "dominance, length_weight and finalists are of beams"),
        ({"views": 8, "finalists": 2}, "finalists are of beams, the decoder is greedy"),
        ({"decoder": "beam", "views": 4, "finalists": 4}, "4 finalists are not fewer than the views, 4"),
        ({"decoder": "beam", "views": 4, "finalists": -1}, "finalists must be a whole number"),
        ({"decoder": "beam", "width": 8, "views": 8, "finalists": 2}, "8 beams in 8 views leave none"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**settings)  # type: ignore[arg-type]


def test_labels_tell_settings_apart() -> None:
    assert Settings().label == "greedy"
    assert Settings(decoder="beam", width=100, views=8).label == "beam-100-views-8"
    other = Settings(decoder="sample", statistics="batch", precision="bfloat16", limit=3)
    assert other.label == "sample-1000-batch-bfloat16-first-3"
    assert Settings(views=8, candidates=32, limit=3).label == "greedy-views-8-candidates-32-first-3"
    assert Settings(views=2, improve=0.5, limit=3).label == "greedy-views-2-improve-0.5-first-3"


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(decoder="beam", width=7),
        Settings(decoder="sample", width=64, views=3),
        Settings(decoder="greedy", improve=2.0),
        Settings(decoder="beam", views=8, improve=0.05),
        Settings(decoder="beam", dominance=True),
        Settings(decoder="beam", views=32, finalists=4),
        Settings(decoder="beam", views=8, finalists=2, dominance=True, length_weight=60.0, improve=0.5),
        Settings(decoder="beam", views=32, dominance=True, length_weight=60.0, improve=0.5),
        Settings(decoder="beam", width=7, length_weight=0.25),
    ],
)
def test_a_label_is_read_back(settings: Settings) -> None:
    assert parse_decoder(settings.decoder_label) == settings


def test_what_a_label_does_not_say_comes_from_the_others() -> None:
    others = {"width": 5, "views": 2, "improve": 0.1, "limit": 9}
    assert parse_decoder("beam", **others) == Settings(decoder="beam", **others)  # type: ignore[arg-type]
    assert parse_decoder("beam-8-views-4", **others) == Settings(
        decoder="beam", width=8, views=4, improve=0.1, limit=9
    )


@pytest.mark.parametrize(
    "text", ["", "beam-", "beam-1000-8", "greedy-5", "beam-views", "beam improve", "Beam-5"]
)
def test_what_is_no_label(text: str) -> None:
    with pytest.raises(InputError, match="written like greedy, beam-100"):
        parse_decoder(text)


def test_an_unknown_decoder_is_named() -> None:
    with pytest.raises(InputError, match="unknown decoder 'best'; allowed: greedy, sample, beam"):
        parse_decoder("best-100")
