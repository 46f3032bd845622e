"""The settings of a decoder: checked, printed, read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georoutenet.decode.decoding import EXAMPLES, RECOMMENDED, Decoding
from georoutenet.errors import InputError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder": "best"}, "unknown decoder 'best'; allowed: greedy, sample, beam"),
        ({"precision": "int8"}, "unknown precision 'int8'; allowed: float32, bfloat16"),
        ({"width": 0}, "width must be a whole number of at least 1"),
        ({"width": float("inf")}, "width must be a whole number of at least 1, got inf"),
        ({"views": "x"}, "views must be a whole number of at least 1 and at most 10,000, got 'x'"),
        ({"candidates": 0}, "candidates must be"),
        ({"decoder": "beam", "length_weight": -1.0}, "length_weight must be a number >= 0, got -1.0"),
        ({"decoder": "beam", "length_weight": float("nan")}, "length_weight must be a number >= 0"),
        ({"length_weight": 60.0}, "length_weight and finalists are of beams, the decoder is greedy"),
        ({"decoder": "sample", "dominance": True}, "dominance, length_weight and finalists are of beams"),
        ({"views": 8, "finalists": 2}, "finalists are of beams, the decoder is greedy"),
        ({"decoder": "beam", "views": 4, "finalists": 4}, "4 finalists are not fewer than the views, 4"),
        ({"decoder": "beam", "views": 4, "finalists": -1}, "finalists must be a whole number"),
        ({"decoder": "beam", "width": 8, "views": 8, "finalists": 2}, "8 beams in 8 views leave none"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Decoding(**settings)


@pytest.mark.parametrize(
    ("decoding", "label"),
    [
        (Decoding(), "greedy"),
        (Decoding("beam"), "beam-1000"),
        (Decoding("sample", width=64, views=3), "sample-64-views-3"),
        (RECOMMENDED, "beam-1000-views-8-dominance-length-60-merge"),
        (
            Decoding("beam", views=32, finalists=8, dominance=True, length_weight=0.25),
            "beam-1000-views-32-finalists-8-dominance-length-0.25",
        ),
        (Decoding(views=9, candidates=16, precision="bfloat16"), "greedy-views-9-candidates-16-bfloat16"),
    ],
)
def test_labels(decoding: Decoding, label: str) -> None:
    assert str(decoding) == label
    assert Decoding.parse(label) == decoding


@given(
    st.sampled_from(["greedy", "sample", "beam"]),
    st.integers(3, 10**6),
    st.integers(1, 64),
    st.booleans(),
    st.sampled_from([0.0, 0.25, 60.0, 1e-7, 1e12]),
    st.none() | st.integers(1, 99),
    st.sampled_from(["float32", "bfloat16"]),
)
def test_what_is_printed_is_read_back(
    decoder: str,
    width: int,
    views: int,
    dominance: bool,
    length_weight: float,
    candidates: int | None,
    precision: str,
) -> None:
    of_beam: dict[str, Any] = {"dominance": dominance, "length_weight": length_weight}
    of_beam["finalists"] = views - 1 if width > views else 0
    decoding = Decoding(
        decoder,
        width=1000 if decoder == "greedy" else width,
        views=views,
        candidates=candidates,
        precision=precision,
        **(of_beam if decoder == "beam" else {}),
    )
    assert Decoding.parse(str(decoding)) == decoding
    assert Decoding.from_header(decoding.header()) == decoding


def test_words_are_those_of_the_tables() -> None:
    assert RECOMMENDED.decoder_words == ["Beam-1000", "8 views", "dominance", "length 60", "merged"]
    assert Decoding(candidates=16, precision="bfloat16").scores_words == ["16 candidates", "bfloat16"]
    assert Decoding(views=2).decoder_words == ["Greedy", "2 views"]


def test_headers_hold_every_setting() -> None:
    expected = {"decoder": "beam", "width": "9", "views": "4", "finalists": "2", "dominance": "yes"}
    expected |= {"length_weight": "0.25", "merge": "", "candidates": "", "precision": "float32"}
    beam = Decoding("beam", width=9, views=4, finalists=2, dominance=True, length_weight=0.25)
    assert beam.header() == expected
    assert Decoding().header()["width"] == ""


def test_what_a_label_does_not_say_comes_from_the_others() -> None:
    assert Decoding.parse("beam-8", width=5, views=2) == Decoding("beam", width=8, views=2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "beam-",
        "beam-1000-8",
        "greedy-5",
        "beam-views",
        "Beam-5",
        "beam-5-improve-1",
        None,
    ],
)
def test_what_is_no_label(text: Any) -> None:
    with pytest.raises(InputError, match="written like greedy, beam-100"):
        Decoding.parse(text)


def test_the_examples_of_the_error_are_labels() -> None:
    assert [str(Decoding.parse(example)) for example in EXAMPLES] == list(EXAMPLES)
