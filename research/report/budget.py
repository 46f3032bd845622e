"""The paper's budget beside an eighth of it, by what training itself measured."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable
from pathlib import Path

from georoutenet.evaluate.names import METHODS
from georoutenet.evaluate.references import load_references
from research.report.contrasts import seeds_of
from research.report.markdown import markdown_table

ABOUT = """\
Runs of 20 million instances let the entropy coefficient fall eight times as fast as the paper, whose
schedule takes 160 million. Greedy validation on val50, from the metrics of the runs (`docs/runs`): gap of
the shortest mean length, in percent. The longer run stands here twice, first with no validation that the
shorter ones do not have: up to there it saw the same instances as the run of its seed, and what differs is
the schedule.""".splitlines()

SUFFIX = "-160m"


def budget(runs: Path) -> list[str]:
    """A table of the models whose metrics with the whole budget lie in a folder."""
    reference, rows = load_references("val50").mean, []
    metrics = {path.name.removesuffix(".csv.gz"): path for path in runs.glob("*.csv.gz")}
    for method in METHODS.values():
        long = f"paper-{method.lower()}{SUFFIX}"
        short = {name: validations(metrics[name]) for name in seeds_of(list(metrics), method)}
        if long not in metrics or not short:
            continue
        lengths = validations(metrics[long])
        common = set.intersection(set(lengths), *(set(each) for each in short.values()))
        rows += [[method, name, *_best(own, common, reference)] for name, own in short.items()]
        rows += [[method, long, *_best(lengths, steps, reference)] for steps in (common, lengths)]
    heads = ["model", "weights", "validations", "last step", "greedy val50"]
    return markdown_table(heads, rows, 2) if rows else []


def validations(path: Path) -> dict[int, float]:
    """Mean lengths by step, where a step was validated."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return {
            int(row["step"]): float(row["validation"]) for row in csv.DictReader(file) if row["validation"]
        }


def _best(lengths: dict[int, float], steps: Iterable[int], reference: float) -> list[str]:
    own = list(steps)
    gap = 100 * (min(lengths[step] for step in own) / reference - 1)
    return [f"{len(own)}", f"{max(own):,}", f"{gap:.3f}"]
