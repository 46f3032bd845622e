"""What a result is called in tables: the paper's name of its model and of its decoder."""

from __future__ import annotations

from georoutenet.evaluate.settings import settings_of

METHODS = {
    ("nar4tsp", "pg"): "NAR4TSP-PG",
    ("nar4tsp", "mcs"): "NAR4TSP-MCS",
    ("georoutenet", "pg"): "GeoRouteNet-PG",
    ("georoutenet", "mcs"): "GeoRouteNet-MCS",
}
"""The paper's four models by encoder and objective."""
BATCH_STATISTICS = "batch statistics"


def method_name(header: dict[str, str]) -> str:
    """The paper's name of the model, or empty where encoder and objective are none of its four."""
    return METHODS.get((header["encoder"], header["objective"]), "")


def decoder_name(header: dict[str, str]) -> str:
    """As the paper writes it, with every setting that the paper does not have."""
    settings = settings_of(header)
    parts = settings.decoding.decoder_words
    parts += [f"{settings.improve:g} s search"] if settings.improve else []
    parts += [BATCH_STATISTICS] if settings.statistics == "batch" else []
    return ", ".join(parts + settings.decoding.scores_words)
