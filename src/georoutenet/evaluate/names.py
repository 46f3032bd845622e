"""What a result is called in tables: the paper's name of its model and of its decoder."""

from __future__ import annotations

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
    name = header["decoder"].capitalize() + (f"-{header['width']}" if header["width"] else "")
    if header.get("views", "1") != "1":
        name += f", {header['views']} views"
    if header.get("finalists"):
        name += f", {header['finalists']} finalists"
    if header.get("dominance"):
        name += ", dominance"
    if header.get("length_weight"):
        name += f", length {header['length_weight']}"
    if header.get("improve"):
        name += f", {header['improve']} s search"
    if header.get("statistics") == "batch":
        name += f", {BATCH_STATISTICS}"
    if header.get("candidates"):
        name += f", {header['candidates']} candidates"
    if header.get("precision", "float32") != "float32":
        name += f", {header['precision']}"
    return name
