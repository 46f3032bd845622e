"""Tables about the paper's 2x2 over training seeds: contrasts, orders, lists of TSPLIB, selection, shifts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

import numpy as np

from georoutenet.evaluate.names import BATCH_STATISTICS, METHODS, decoder_name
from georoutenet.evaluate.results import Results
from georoutenet.evaluate.statistics import Interval
from georoutenet.io.datasets import SHIFT
from georoutenet.io.tsplib import TSPLIB27
from research.report.contrasts import (
    CONTRASTS,
    FIXED,
    PRIMARY,
    SIMPLE,
    Array,
    Runs,
    difference,
    estimate,
    mean_over_seeds,
    possible_lists,
    read_runs,
)
from research.report.markdown import markdown_table
from research.report.tables import DECODERS, File, paper_value

BEAM = "Beam-1000"
SHORT = {method: method.replace("NAR4TSP", "N").replace("GeoRouteNet", "G") for method in METHODS.values()}
PAPERS = {**PRIMARY, "val50": "val50", "diag100": "diag100"}


def about_contrasts(complete: Sequence[File]) -> list[str]:
    """What the table of contrasts says, with the seeds that these files have."""
    found = {name: read_runs(complete, name, BEAM) for name in PRIMARY}
    by_set = {name: runs.names for name, runs in found.items() if runs is not None}
    names = max(by_set.values(), key=len, default=())
    others = {name: own for name, own in by_set.items() if own != names}
    few, freedom = _few(len(names)), _freedom(len(names))
    seeds = _and(names) + "".join(f" ({name}: {_and(own)})" for name, own in others.items())
    freedom += "".join(f", {name} {_freedom(len(own))}" for name, own in others.items())
    return wrapped(f"""\
        Listed when the mean gaps of the first two seeds were known but none of these intervals, with
        {BEAM} and NAR4TSP's statistics frozen: what the encoder and the objective take off the gap, in
        points, averaged over the other factor, and their interaction, the encoder's gain under PG less that
        under MCS; as a log-ratio it is 0 where the gains multiply. {few} training seeds, {seeds}, of
        20 million instances each, beside each other. *Bootstrap*: 95 % over instances, paired, and over
        seeds. *t*: 95 % over seeds alone, their variance pooled over the four models (degrees of freedom:
        {freedom}). {few} seeds make a bootstrap too narrow; where the two differ, believe the wider one.
        The instances of TSPLIB are no sample, and its first interval is of their variety only. The paper's
        values are of val50, diag100 and its own 27, after 160 million instances.""")


def _few(count: int) -> str:
    return {2: "Two", 3: "Three"}.get(count, str(count))


def _freedom(seeds: int) -> str:
    """Degrees of freedom of a variance that four models share."""
    freedom = 4 * (seeds - 1)
    return {4: "four", 8: "eight"}.get(freedom, str(freedom))


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 104, break_on_hyphens=False)


ABOUT_ORDERS = """\
From best to worst, N for NAR4TSP (statistics frozen) and G for GeoRouteNet; the mean gaps are in the
tables below. The paper's are of val50, diag100 and its 27.""".splitlines()

ABOUT_LISTS = f"""\
Mean gaps and effects with {BEAM}, seed by seed as above. The paper names none of its 27 instances. Of 105
to 150 cities there are ten, of 159 to 299 twelve, and it took seven of each; 13 are certain. The last
but one column has the smallest and the largest value over all 95,040 such lists.""".splitlines()

ABOUT_SELECTION = """\
The checkpoint of each run was selected on val50 (`georoutenet`: on instances made for it), settings of
decoders on val50 and diag100. What that flatters: the gap on fresh instances of the same kind less that
on the set of selection, in points, with a normal interval of 95 %.""".splitlines()

ABOUT_SHIFT = """\
The four models of the 2x2 saw uniform instances of 50 cities alone. Mean gap over the seeds, the
bootstrap over seeds and instances in parentheses; on test50 and test100 all 10,000 instances, elsewhere
the first ones. *To size* and *to shape* compare with uniform instances of 50 cities: by what factor the
gap of the mean model grows where only the size, or only the distribution, is another.""".splitlines()


def _papers(decoder: str, set_name: str) -> Array:
    """The paper's gaps ``(2, 2)``."""
    return np.array([paper_value(method, decoder, set_name).gap for method in METHODS.values()]).reshape(2, 2)


def contrasts(complete: Sequence[File]) -> list[str]:
    rows = []
    for set_name, papers in PRIMARY.items():
        runs = read_runs(complete, set_name, BEAM)
        if runs is None:
            continue
        paper = _papers(BEAM, papers)
        for contrast in CONTRASTS:
            found = estimate(runs, contrast)
            each = " / ".join(_signed(value) for value in found.seeds)
            t = "" if found.t is None else _range(found.t)
            words = [_signed(found.bootstrap.mean), _range(found.bootstrap), t]
            rows.append([set_name, contrast.name, each, *words, _signed(float(contrast(paper)))])
    heads = ["set", "contrast", "seeds", "mean", "bootstrap", "t", "paper"]
    return markdown_table(heads, rows, 2) if rows else []


def orders(complete: Sequence[File]) -> list[str]:
    rows = []
    for set_name in ("val50", "test50", "diag100", "test100", "tsplib36"):
        for decoder in DECODERS:
            runs = read_runs(complete, set_name, decoder)
            if runs is None:
                continue
            means = [gaps.ravel() for gaps in runs.of(slice(None))]
            paper = _papers(decoder, PAPERS[set_name])
            rows.append([set_name, decoder, " / ".join(map(_order, means)), _order(paper.ravel())])
    return markdown_table(["set", "decoder", "seeds", "paper"], rows, 4) if rows else []


def _order(gaps: np.ndarray) -> str:
    names = list(SHORT.values())
    return " ".join(names[k] for k in np.argsort(gaps, kind="stable"))


def tsplib_lists(complete: Sequence[File]) -> list[str]:
    lines = []
    for decoder in (BEAM, f"{BEAM}, {BATCH_STATISTICS}"):
        runs = read_runs(complete, "tsplib36", decoder)
        if runs is None:
            continue
        lists = possible_lists(runs)
        certain = (runs.sizes >= FIXED[0]) & (runs.sizes <= FIXED[1])
        declared = np.isin(runs.instances, TSPLIB27)
        parts = [runs.of(slice(None)), runs.of(declared), runs.of(certain)]
        paper = _papers(BEAM, "tsplib27")
        named = [(method, lambda g, k=k: g[..., k // 2, k % 2]) for k, method in enumerate(METHODS.values())]
        rows = []
        for name, of in [*named, *((each.name, each.of) for each in SIMPLE)]:
            cells = [" / ".join(f"{value:.2f}" for value in of(part)) for part in parts]
            least, most = of(lists).min(axis=0), of(lists).max(axis=0)
            bounds = " / ".join(f"{low:.2f} to {high:.2f}" for low, high in zip(least, most, strict=True))
            rows.append([name, *cells, bounds, f"{float(of(paper)):.2f}"])
        heads = ["", "all 36", "declared 27", f"certain {int(certain.sum())}", "any list of 27", "paper"]
        lines += [f"NAR4TSP with {'batch' if BATCH_STATISTICS in decoder else 'frozen'} statistics:", ""]
        lines += markdown_table(heads, rows, 1)
    return lines


def selection(complete: Sequence[File]) -> list[str]:
    """For each weights and decoder with all four sets."""
    found: dict[tuple[str, str], dict[str, Results]] = {}
    for _, results in complete:
        header = results.header
        key = (header["weights"], decoder_name(header))
        if key[1] in ("Greedy", BEAM):
            found.setdefault(key, {}).setdefault(header["set"], results)
    rows = []
    for (weights, decoder), by_set in sorted(found.items(), key=lambda item: (item[0][0], -len(item[0][1]))):
        pairs = [("val50", "test50"), ("diag100", "test100")]
        if not all(name in by_set for pair in pairs for name in pair):
            continue
        row = [weights, decoder]
        for selected, fresh in pairs:
            a, b = by_set[selected].gaps, by_set[fresh].gaps
            change = difference(a, b)
            row += [f"{a.mean():.3f}", f"{b.mean():.3f}", f"{_signed(change.mean)} ({_range(change)})"]
        rows.append(row)
    heads = ["weights", "decoder", "val50", "test50", "difference", "diag100", "test100", "difference"]
    return markdown_table(heads, rows, 2) if rows else []


def shifts(complete: Sequence[File], partial: Sequence[File]) -> list[str]:
    lines: list[str] = []
    for decoder in DECODERS:
        measured: dict[str, Runs] = {}
        for sizes in SHIFT.values():
            for name in sizes.values():
                runs = read_runs(complete, name, decoder) or read_runs(partial, name, decoder)
                if runs is not None:
                    measured[name] = runs
        base = measured.get("test50")
        if base is None or len(measured) < 3:
            continue
        level = float(base.gaps.mean())
        rows = []
        for shape, sizes in SHIFT.items():
            for size, name in sizes.items():
                if name not in measured:
                    continue
                runs = measured[name]
                cells = [
                    _with_interval(mean_over_seeds(runs.gaps[:, :, k // 2, k % 2]))
                    for k in range(len(METHODS))
                ]
                factor = f"{float(runs.gaps.mean()) / level:.1f}"
                pure = [factor if shape == "uniform" and size != 50 else ""]
                pure += [factor if shape != "uniform" and size == 50 else ""]
                rows.append([name, f"{len(runs.instances):,}", *cells, *pure])
        lines += [f"{decoder}:", ""]
        lines += markdown_table(["set", "instances", *METHODS.values(), "to size", "to shape"], rows, 1)
    return lines


def used_in_shifts(partial: Iterable[File]) -> set[str]:
    """Names of results of the 2x2 on the first instances of the sets of shifts."""
    sets = {name for sizes in SHIFT.values() for name in sizes.values()}
    return {name for name, each in partial if each.header["set"] in sets and _is_two_by_two(each)}


def _is_two_by_two(results: Results) -> bool:
    return results.header["weights"].startswith("paper-")


def _signed(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.3f}"


def _range(interval: Interval) -> str:
    return f"{interval.low:+.3f} to {interval.high:+.3f}"


def _with_interval(interval: Interval) -> str:
    return f"{interval.mean:.2f} ({interval.low:.2f} to {interval.high:.2f})"
