"""The commands that make the files of results, read back from the files' headers."""

from __future__ import annotations

import math
from typing import NamedTuple

from georoutenet.evaluate.datasets import DATASETS, dataset
from georoutenet.evaluate.results import Results
from georoutenet.evaluate.tables import Folder


class Command(NamedTuple):
    """A command, where its files were made, and the minutes of solving; NaN where they were not measured."""

    line: str
    place: str
    minutes: float


def place(header: dict[str, str]) -> str:
    """The device of a result, and on a processor the threads."""
    device, threads = header.get("device", ""), header.get("threads", "")
    if on_gpu(device) or not threads:
        return device
    return f"{device}, {threads} thread{'s' if threads != '1' else ''}"


def on_gpu(device: str) -> bool:
    """Whether a device's name is a GPU's."""
    return "NVIDIA" in device


def decoder_label(header: dict[str, str]) -> str:
    """The decoder as ``georoutenet evaluate --decoder`` takes it."""
    parts = [header["decoder"]] + ([header["width"]] if header["width"] else [])
    if header.get("views", "1") != "1":
        parts += ["views", header["views"]]
    if header.get("improve"):
        parts += ["improve", header["improve"]]
    return "-".join(parts)


def commands(folder: Folder) -> list[Command]:
    """Few commands for all files: sets with the same decoders, and decoders with the same sets, share one."""
    by_decoder: dict[tuple[str, ...], dict[str, list[Results]]] = {}
    for _, results in folder.complete:
        header = results.header
        key = (header["weights"], _options(header), place(header))
        by_decoder.setdefault(key, {}).setdefault(decoder_label(header), []).append(results)
    found = []
    for (weights, options, where), decoders in by_decoder.items():
        shared: dict[tuple[str, ...], list[str]] = {}
        for decoder, files in decoders.items():
            sets = sorted({each.header["set"] for each in files}, key=list(DATASETS).index)
            shared.setdefault(tuple(sets), []).append(decoder)
        for names, labels in shared.items():
            what = f"--set {','.join(names)} --decoder {','.join(labels)}"
            line = f"georoutenet evaluate {weights} {what}{options}"
            seconds = sum(_seconds(each) for label in labels for each in decoders[label])
            found.append(Command(line, where, seconds / 60))
    for name, measured in folder.efficiency.items():
        first = measured[0]
        sets = sorted({each.set for each in measured}, key=list(DATASETS).index)
        limit = max(each.instances for each in measured)
        line = f"python benchmarks/efficiency.py --out {name} --set {','.join(sets)} --limit {limit}"
        line += " --device cuda" if any(on_gpu(each.device) for each in measured) else ""
        seconds = sum(each.seconds + 4 * each.probe_seconds for each in measured)
        found.append(
            Command(line, place({"device": first.device, "threads": str(first.threads)}), seconds / 60)
        )
    return found


def _options(header: dict[str, str]) -> str:
    """What differs from the defaults of ``georoutenet evaluate``, and the device."""
    usual = "128" if dataset(header["set"]).is_random else "1"
    options = ""
    if header.get("statistics") == "batch":
        options += " --statistics batch"
    if header.get("precision", "float32") != "float32":
        options += f" --precision {header['precision']}"
    if header.get("seed", "0") != "0":
        options += f" --seed {header['seed']}"
    if header.get("batch", usual) != usual:
        options += f" --batch {header['batch']}"
    return options + (" --device cuda" if on_gpu(header.get("device", "")) else " --device cpu")


def _seconds(results: Results) -> float:
    """Measured, or by the speed in the header."""
    measured = float(results.seconds.sum())
    speed = float(results.header.get("instances_per_second") or "nan")
    return len(results) / speed if math.isnan(measured) else measured
