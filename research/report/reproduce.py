"""The commands that make the files of results, read back from the files' headers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from georoutenet.evaluate.names import BATCH_STATISTICS
from georoutenet.evaluate.results import Results
from georoutenet.evaluate.settings import settings_of
from georoutenet.io.datasets import DATASETS, dataset
from research.report.efficiency import SOLVER_NAMES, Measurement
from research.report.tables import Folder, papers_decoder


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
    return settings_of(header).decoder_label


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
    return found + [_measuring(name, measured) for name, measured in folder.efficiency.items() if measured]


def _measuring(name: str, measured: list[Measurement]) -> Command:
    """The command that makes a file of measurements."""
    models = [each for each in measured if each.weights]
    solvers = [each for each in measured if not each.weights]
    options = {
        "weights": _unique(each.weights for each in models),
        "set": _unique(each.set for each in measured),
        "decoder": _unique(_label(each.decoder) for each in models),
        "solver": _unique(_solver(each) for each in solvers) or "''",
        "limit": str(max((each.instances for each in models), default=1)),
        "solver-limit": str(max((each.instances for each in solvers), default=1)),
        "precision": _unique(each.precision for each in models),
        "device": "cuda" if any(on_gpu(each.device) for each in models) else "cpu",
    }
    if any(BATCH_STATISTICS in each.decoder for each in models):
        options["statistics"] = "batch"
    if not solvers or options["solver-limit"] == options["limit"]:
        del options["solver-limit"]
    if not models:
        del options["weights"], options["decoder"], options["precision"]
    words = " ".join(f"--{option} {value}" for option, value in options.items())
    where = place({"device": measured[0].device, "threads": str(measured[0].threads)})
    seconds = sum(each.seconds + 4 * each.probe_seconds for each in measured)
    return Command(f"python benchmarks/efficiency.py --out {name} {words}", where, seconds / 60)


def _unique(words: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(words))


def _label(decoder: str) -> str:
    """``Beam-1000, 8 views, length 60, 0.1 s search`` as the command takes it."""
    parts = papers_decoder(decoder).split(", ")
    label = parts[0].lower()
    for part in parts[1:]:
        words = part.split()
        if words[0] in ("dominance", "length"):
            label += "-" + "-".join(words)
        elif words[-1] in ("views", "finalists"):
            label += f"-{words[-1]}-{words[0]}"
        else:
            label += f"-improve-{words[0]}"
    return label


def _solver(one: Measurement) -> str:
    """``OR-Tools`` that took ``at most 1 s`` as the command takes it."""
    name = next(short for short, words in SOLVER_NAMES.items() if words == one.method)
    return name + (f":{one.decoder.split()[2]}" if one.decoder else "")


def _options(header: dict[str, str]) -> str:
    """What differs from the defaults of ``georoutenet evaluate``, and the device."""
    usual = "128" if dataset(header["set"]).is_random else "1"
    options = ""
    if header.get("statistics") == "batch":
        options += " --statistics batch"
    if header.get("candidates"):
        options += f" --candidates {header['candidates']}"
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
