"""The page of results as Markdown: complete tables first, then all, the paper's values beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from georoutenet.evaluate.names import METHODS
from georoutenet.evaluate.results import Results
from georoutenet.evaluate.statistics import RESAMPLES, SEED
from georoutenet.io.datasets import DATASETS, Role, dataset
from georoutenet.io.tsplib import TSPLIB27, size_groups, tsplib_names
from research.report import budget, replication, studies
from research.report.efficiency import Measurement, PaperEfficiency, paper_efficiency
from research.report.figures import figure_names, shifted
from research.report.markdown import markdown_table
from research.report.reproduce import commands, place
from research.report.solver_rows import solver_rows
from research.report.tables import (
    DECODERS,
    GROUPS,
    PAPERS_SOLVERS,
    TSPLIB,
    Cell,
    File,
    Folder,
    paper_value,
    papers_decoder,
)

HEADLINE_SETS = ("val50", "test50", "diag100", "test100", "test200", "clustered100", "tsplib27", "tsplib36")


BEGAN_WITH = {"georoutenet": "georoutenet-50"}
"""Weights that were trained on from others."""
SAMPLED = {"georoutenet": 48, "georoutenet-50": 48}
"""Sampled tours of a training instance, where they are not the paper's: one under PG, three under MCS."""


class _Table:
    """Cells looked up by what a table prints."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.by = {(c.weights, c.decoder, c.set, c.group): c for c in cells}
        # Each of the paper's models is there, with weights of ours or without.
        self.models = [
            (method, weights)
            for method in METHODS.values()
            for weights in sorted({c.weights for c in cells if c.method == method}) or [""]
        ] + [("", weights) for weights in sorted({c.weights for c in cells if not c.method})]

    def decoders(self, weights: str, sets: Iterable[str]) -> list[str]:
        """The paper's, and those with which these weights were measured on one of the sets."""
        wanted = set(sets)
        own = {c.decoder for c in self.by.values() if c.weights == weights and c.set in wanted}
        return [*DECODERS, *sorted(own - set(DECODERS))]

    def ours(self, weights: str, decoder: str, set_name: str, group: str, *, decimals: int) -> str:
        cell = self.by.get((weights, decoder, set_name, group))
        if cell is None:
            return ""
        text = f"{cell.gap:.{decimals}f}"
        if not math.isnan(cell.gap_low):
            text += f" ({cell.gap_low:.{decimals}f} to {cell.gap_high:.{decimals}f})"
        return text

    def length(self, weights: str, decoder: str, set_name: str) -> str:
        cell = self.by.get((weights, decoder, set_name, "all"))
        return "" if cell is None else f"{cell.length:.4f}"


def _shown(value: float, decimals: int) -> str:
    return "" if math.isnan(value) else f"{value:,.{decimals}f}"


_INTRODUCTION = f"""\
Made by `georoutenet tables` from the per-instance results listed at the end; do not edit. How the
numbers come about is described in [protocol.md](protocol.md). Gaps are means over instances, in
percent. Those of random sets have 95 % bootstrap intervals ({RESAMPLES:,} resamples, seed {SEED}),
which speak of other instances, not of other training runs: each file of weights is one run. *Paper* is
the paper's value for the same encoder and objective, from one run as well. What of the paper replicates
is told in [replication.md](replication.md).

Weights called `paper-...` come from the paper's recipes, seed 1234, those called `...-seed2` with seed
2, and so on. They differ from the paper's in this: 20 million instances instead of 160; the entropy
coefficient falls to zero over these 312,500 steps instead of 2.5 million; matrix products in bfloat16;
the checkpoint is the best of 13 (every 25,000 steps and the last) on val50 instead of 1,000; and
NAR4TSP was validated, hence selected, with its norms' statistics frozen. The recipes of the other
weights are not the paper's (see their cards): there the two columns compare results, not training methods.
`georoutenet` was trained on 20 to 500 cities of six shapes and sees distances in units of density:
beside the paper's model, which saw 50 uniform cities alone, its figures at 100 cities or on TSPLIB are
those of another task of learning.

An empty cell has not been measured. How the weights came about is in the [experiment
log](log.md).""".splitlines()

_ABOUT_BUDGET = """\
Those called `...-160m` had the paper's budget and its schedules, 160 million instances over 2.5 million
steps, in bfloat16; of 200 checkpoints (every 12,500 steps) the best on val50 was taken.""".splitlines()

_ABOUT_HEADLINE = """\
Weights that were measured on sets of many kinds. `val50` served to choose weights, `val50` and
`diag100` settings of decoders; the other random sets are held out, and nothing was trained or selected
on TSPLIB.""".splitlines()

_ABOUT_BEYOND = """\
The same weights with more than the paper's beams: rotated and reflected views of each instance, beams
ranked with their length, dominated beams dropped, most beams to the best views, candidate lists, or
local search. See [decoding](decoding.md). *Instances/s* on the machine named: views and wider searches
are paid for in time, by about the factor of the views (plain Beam-1000 is in the list of
files).""".splitlines()

_ABOUT_TWO_BY_TWO = """\
The paper does not say whether NAR4TSP's norms used statistics frozen in training or those of the batch
at hand, so its values stand beside both. *Millions seen*: instances in training, with those of the
weights that it began with; *sampled tours* of them, in millions. The paper's models saw 160 million,
with one sampled tour each under PG and three under MCS. The stages of `georoutenet-50` and
`georoutenet` had one seed, so a later stage saw instances of the earlier ones again; they count each
time. What was measured on some of the three sets alone is in the tables of those.""".splitlines()

_ABOUT_SHIFT = """\
What the paper leaves open: size changed at fixed distribution (uniform), distribution changed at fixed
size, and both. Hatched cells have not been measured; white ones have no set.""".splitlines()

_ABOUT_TSPLIB = """\
EUC_2D instances of 51 to 299 cities, integer distances, gaps to the published optima. The paper gives
only the sizes of its groups. The first two groups are thereby fixed; the instances of the two larger
ones are our own choice by rule, so there the columns are about different instances. The groups are
small and mixed: their means are no estimates for other instances.""".splitlines()

_ABOUT_EFFICIENCY = """\
All contenders of a file ran one after the other on the same kind of machine, with the commits and on
the dates that it says, and took the first instances of each set. *Probe*: the first instance alone,
warm, mean of three. *Total* and *instances/s*: all instances, our models in batches, solvers one by one
on one thread of the processor; *whole set*: the total scaled to all instances of the set, 10,000 of
val50 and of diag100, for which the paper's total stands beside it. Times are wall-clock; *CPU s* is the
processor time of the process in the same span, and is the smaller of the two where other programs had
the core; a search or solver with a time limit then got less done. The paper's models run Beam-1000 on
its GPU in batches of 128 (1 on TSPLIB), its solvers one process per instance, over the whole set. On
TSPLIB solvers see unrounded distances, so a proven tour may be a little longer than the optimum. Rows of
the `paper-...` weights on TSPLIB are from before ties of neighborhoods were kept (2026-11-18), so their
gaps are not quite those of the tables above. The
picture shows the packaged weights and the solvers; gray lines lead from marks that were moved apart to
where they belong.""".splitlines()

_ABOUT_REPRODUCING = """\
One command per line writes CSV files to `results/WEIGHTS`; `python -m research.pack results/WEIGHTS.npz
results/WEIGHTS` packs them, and `georoutenet tables results` makes this page and its pictures.
*Minutes* were spent solving on the machine named, the network's for each decoder, also where they
shared it; an empty cell was not measured. TSPLIB has to be there (`georoutenet data tsplib`). Weights
that are not packaged are given as a path; `python -m research.weights` restores those called
`paper-...` from the history of a full clone. Those called `...-seed2` are not kept: `georoutenet train
recipes/NAME.toml --set precision=bfloat16 --set steps=312500 --set validation_every=25000 --set
checkpoint_every=25000 --set seed=2`, at the commit that their files name, made them on
one NVIDIA H200.""".splitlines()

_ABOUT_FILES = """\
`FILE.npz:CELL` is what `georoutenet compare` takes. Weights by the first digits of their SHA-256.
Instances/s count network, decoding and search, not compilation; *network %* and *search %* are their
shares of the time. Speeds are those of the run, whatever else the machine was doing.""".splitlines()


def format_markdown(folder: Folder, cells: Sequence[Cell], runs: Path | None = None) -> str:
    """All tables as one page: the files of a folder, the ``cells`` made of them, and metrics in ``runs``."""
    table = _Table(cells)
    pictures = figure_names(cells, folder.measurements)
    sections: list[tuple[str, Sequence[str], Sequence[str], str]] = [
        ("In short", _ABOUT_HEADLINE, _headline(table, shifted(cells)), ""),
        (
            "Encoder and objective, Beam-1000",
            _ABOUT_TWO_BY_TWO,
            _two_by_two(table, folder.complete),
            "interaction",
        ),
        (
            "Contrasts over seeds",
            replication.about_contrasts(folder.complete),
            replication.contrasts(folder.complete),
            "",
        ),
        ("Order of the four", replication.ABOUT_ORDERS, replication.orders(folder.complete), ""),
        ("Lists of TSPLIB", replication.ABOUT_LISTS, replication.tsplib_lists(folder.complete), ""),
        ("Selection", replication.ABOUT_SELECTION, replication.selection(folder.complete), ""),
        (
            "Size and distribution",
            replication.ABOUT_SHIFT,
            replication.shifts(folder.complete, folder.partial),
            "",
        ),
        (
            "Components, settings, capacity",
            studies.ABOUT,
            studies.studies(folder.studies, folder.complete),
            "",
        ),
        ("The paper's budget", budget.ABOUT, budget.budget(runs) if runs else [], ""),
        ("Beyond the paper's decoders", _ABOUT_BEYOND, _beyond(table, folder.complete, shifted(cells)), ""),
        ("The paper's random sets", (), _random(table), ""),
        ("Held-out random sets", _ABOUT_SHIFT, _held_out(table), "grid size"),
        ("TSPLIB", _ABOUT_TSPLIB, _tsplib(table), ""),
        ("Efficiency", _ABOUT_EFFICIENCY, _efficiency(folder.efficiency), "time"),
        ("How to reproduce each number", _ABOUT_REPRODUCING, _reproduce(folder), ""),
        ("Files", _ABOUT_FILES, _files([*folder.complete, *folder.studies]), ""),
    ]
    longer = any(results.header["weights"].endswith("-160m") for _, results in folder.complete)
    lines = ["# Results", "", *_INTRODUCTION, "", *([*_ABOUT_BUDGET, ""] if longer else [])]
    for title, about, rows, kinds in sections:
        if not rows:
            continue
        lines += [f"## {title}", ""]
        lines += [*about, ""] if about else []
        lines += rows
        for name, words in pictures.items():
            if name.split("-")[1] in kinds.split():
                lines += [f"![{words}](images/{name}.png)", ""]
    used = replication.used_in_shifts(folder.partial)
    unused = [name for name, _ in folder.partial if name not in used]
    if unused:
        lines += [f"Not used, because they cover only part of their set: {', '.join(unused)}.", ""]
    return "\n".join(lines)


def _headline(table: _Table, weights: Sequence[str]) -> list[str]:
    """Both packaged models on sets of each kind; a set on which one of the cells is missing has no row."""
    columns = [(name, decoder) for name in weights for decoder in ("Greedy", "Beam-1000")]
    rows = [
        [set_name, *(table.ours(*column, set_name, "all", decimals=2) for column in columns)]
        for set_name in HEADLINE_SETS
    ]
    whole = [row for row in rows if all(row)]
    heads = ["set", *(f"{name}, {decoder}" for name, decoder in columns)]
    return markdown_table(heads, whole, 1) if whole and columns else []


def _beyond(table: _Table, complete: Sequence[File], weights: Sequence[str]) -> list[str]:
    """A row for each set and decoder that the paper does not have, with what it costs."""
    files = dict(complete)

    def cost(file: str) -> list[str]:
        return [_shown(_speed(files[file]), 1), place(files[file].header)]

    rows = [
        [name, decoder, set_name, f"{cell.instances:,}", table.ours(*key, decimals=3), *cost(cell.file)]
        for key, cell in table.by.items()
        for name, decoder, set_name, group in [key]
        if name in weights and papers_decoder(decoder) not in DECODERS and group == "all"
    ]
    rows.sort(key=lambda row: (row[0], list(DATASETS).index(row[2]), row[1]))
    heads = ["weights", "decoder", "set", "instances", "gap", "instances/s", "device"]
    return markdown_table(heads, rows, 3) if rows else []


def _two_by_two(table: _Table, complete: Sequence[File]) -> list[str]:
    sets = ("val50", "diag100", "tsplib27")
    headers = [results.header for _, results in complete]
    seen = {
        each["weights"]: int(each["training_instances"]) for each in headers if each.get("training_instances")
    }
    rows = []
    for method, weights in table.models:
        own = [each for each in table.decoders(weights, sets) if papers_decoder(each) == "Beam-1000"]
        for decoder in own:
            trained = (seen.get(weights, math.nan) + seen.get(BEGAN_WITH.get(weights, ""), 0)) / 1e6
            sampled = trained * SAMPLED.get(weights, 3 if method.endswith("MCS") else 1)
            row = [method, weights, decoder, _shown(trained, 1), _shown(sampled, 0)]
            for each in sets:
                decimals = 2 if each in TSPLIB else 3  # as many as the paper's appendix gives
                row += [table.ours(weights, decoder, each, "all", decimals=decimals)]
                row += [_shown(paper_value(method, decoder, each).gap, decimals)]
            rows.append(row)
    heads = ["model", "weights", "decoder", "millions seen", "sampled tours"]
    whole = [row for row in rows if all(row)]
    return markdown_table([*heads, *(head for each in sets for head in (each, "paper"))], whole or rows, 3)


def _random(table: _Table) -> list[str]:
    sets = ("val50", "diag100")
    rows = []
    for solver in PAPERS_SOLVERS:
        row = [solver, "", ""]
        for each in sets:
            paper = paper_value(solver, "", each)
            row += ["", _shown(paper.length, 4), _solver_gap(solver, each, 4), _shown(paper.gap, 3)]
        rows.append(row)
    for method, weights in table.models:
        for decoder in table.decoders(weights, sets):
            row = [method, weights, decoder]
            for each in sets:
                paper = paper_value(method, decoder, each)
                row += [table.length(weights, decoder, each), _shown(paper.length, 4)]
                row += [table.ours(weights, decoder, each, "all", decimals=3), _shown(paper.gap, 3)]
            rows.append(row)
    heads = [f"{each} {what}" for each in sets for what in ("length", "paper", "gap", "paper")]
    heads = [head.split()[-1] if head.endswith("paper") else head for head in heads]
    return markdown_table(["model", "weights", "decoder", *heads], rows, 3)


def _solver_gap(solver: str, set_name: str, decimals: int, names: Sequence[str] = ()) -> str:
    """The mean gap of a solver on all instances that it was given, with their number, or on these."""
    found = solver_rows().get((solver, set_name))
    if found is None:
        return ""
    if names:
        own = [gap for name, gap in zip(found.instances, found.gaps, strict=True) if name in names]
        return f"{sum(own) / len(own) + 0.0:.{decimals}f}" if len(own) == len(names) else ""
    return f"{float(found.gaps.mean()) + 0.0:.{decimals}f} (first {len(found.gaps):,})"


def _held_out(table: _Table) -> list[str]:
    sets = [each for each in DATASETS.values() if each.is_random and each.role is Role.HELD_OUT]
    lines = []
    for _, weights in table.models:
        if weights:
            measured = {(c.decoder, c.set) for c in table.by.values() if c.weights == weights}
            own = [each for each in sets if any(name == each.name for _, name in measured)]
            names = {each.name for each in own}
            decoders = [
                each
                for each in table.decoders(weights, names)
                if any(decoder == each and name in names for decoder, name in measured)
            ]
            rows = [
                [each.name, f"{each.count:,}"]
                + [table.ours(weights, decoder, each.name, "all", decimals=3) for decoder in decoders]
                for each in own
            ]
            if rows:
                lines += [f"`{weights}`:", "", *markdown_table(["set", "instances", *decoders], rows, 1)]
    return lines


def _tsplib(table: _Table) -> list[str]:
    lines = []
    for set_name in TSPLIB:
        with_paper = set_name == "tsplib27"
        rows = []
        names = TSPLIB27 if with_paper else tsplib_names(set_name)
        groups = {**size_groups(names), "all": list(names)}
        for solver in PAPERS_SOLVERS:
            row = [solver, "", ""]
            for group in GROUPS:
                row.append(_solver_gap(solver, "tsplib36", 2, groups[group]))
                if with_paper:
                    row.append(_shown(paper_value(solver, "", set_name, group).gap, 2))
            rows.append(row)
        for method, weights in table.models:
            if not weights and not with_paper:
                continue
            for decoder in table.decoders(weights, TSPLIB):
                row = [method, weights, decoder]
                for group in GROUPS:
                    row.append(table.ours(weights, decoder, set_name, group, decimals=2))
                    if with_paper:
                        row.append(_shown(paper_value(method, decoder, set_name, group).gap, 2))
                rows.append(row)
        counts = {group: len(each) for group, each in groups.items()}
        heads = ["model", "weights", "decoder"]
        for group in GROUPS:
            heads += [f"{group} ({counts[group]})", "paper"] if with_paper else [f"{group} ({counts[group]})"]
        lines += [f"`{set_name}`:", "", *markdown_table(heads, rows, 3)]
    return lines


def _efficiency(efficiency: dict[str, list[Measurement]]) -> list[str]:
    """The paper's efficiency table for each set, its rows beside ours; its rows alone where we have none."""
    measured = [each for file in efficiency.values() for each in file]
    sets = dict.fromkeys(set_name for set_name, _ in paper_efficiency())
    rows = []
    for set_name in [*sets, *sorted({each.set for each in measured} - sets.keys(), key=list(DATASETS).index)]:
        own = [each for each in measured if each.set == set_name]
        there = {each.method for each in own if _is_the_papers(each)}
        rows += [
            [set_name, method, "", "", "", "", *_with_paper(None, paper)]
            for (of_set, method), paper in paper_efficiency().items()
            if of_set == set_name and method not in there
        ]
        for each in own:
            paper = paper_efficiency().get((set_name, each.method)) if _is_the_papers(each) else None
            where = place({"device": each.device, "threads": str(each.threads)})
            gap = "" if math.isnan(each.gap) else f"{round(each.gap, 3) + 0.0:.3f}"
            words = [set_name, each.weights or each.method, each.decoder, where, f"{each.instances:,}", gap]
            rows.append([*words, *_with_paper(each, paper)])
    heads = ["set", "model or solver", "settings", "device", "instances", "gap %", "probe ms", "paper"]
    heads += ["total s", "whole set", "paper", "instances/s", "paper", "network %", "search %", "CPU s"]
    heads += ["peak MiB", "paper", "parameters", "paper"]
    return markdown_table(heads, rows, 4)


def _is_the_papers(one: Measurement) -> bool:
    """Whether the paper has these settings: solvers without a time limit, models with Beam-1000."""
    return papers_decoder(one.decoder) == ("Beam-1000" if one.weights else "")


def _with_paper(one: Measurement | None, paper: PaperEfficiency | None) -> list[str]:
    """The columns of numbers, the paper's beside ours."""
    theirs = paper or PaperEfficiency(*[math.nan] * 5)
    ours = [""] * 9
    if one is not None:
        ours = [
            _shown(1000 * one.probe_seconds, 1),
            _shown(one.seconds, 2),
            _shown(one.seconds * dataset(one.set).count / one.instances, 0 if one.instances < 1000 else 1),
            _shown(one.instances_per_second, 1),
            _shown(100 * one.network_seconds / one.seconds, 0),
            _shown(100 * one.improve_seconds / one.seconds, 0),
            _shown(one.cpu_seconds, 2),
            _shown(one.peak_device_bytes / 2**20, 0),
            f"{one.parameters:,}" if one.parameters else "",
        ]
    return [
        *(ours[0], _shown(theirs.probe_ms, 1), *ours[1:3], _shown(theirs.seconds, 2)),
        *(ours[3], _shown(theirs.instances_per_second, 1), *ours[4:7]),
        *(ours[7], _shown(theirs.peak_gb * 1e9 / 2**20, 0), ours[8]),
        f"{theirs.parameters_million * 1e6:,.0f}" if math.isfinite(theirs.parameters_million) else "",
    ]


def _reproduce(folder: Folder) -> list[str]:
    rows = [[f"`{each.line}`", each.place, _shown(each.minutes, 1)] for each in commands(folder)]
    return markdown_table(["command", "device", "minutes"], rows, 2)


def _speed(results: Results) -> float:
    """Instances a second."""
    seconds = float(results.seconds.sum())
    return (
        len(results) / seconds if seconds > 0 else float(results.header.get("instances_per_second") or "nan")
    )


def _files(complete: Sequence[File]) -> list[str]:
    """Where each number comes from and how fast it was made."""
    rows = []
    for name, results in complete:
        header = results.header
        seconds = float(results.seconds.sum())
        network, search = (
            f"{100 * float(part.sum()) / seconds:.0f}" if seconds > 0 else ""
            for part in (results.network_seconds, results.improve_seconds)
        )
        memory = header.get("peak_device_bytes", "")
        rows.append(
            [
                f"`{name}`",
                header["sha256"][:8],
                header.get("commit", "")[:8],
                place(header),
                header.get("precision", ""),
                header.get("date", ""),
                header.get("batch", ""),
                _shown(_speed(results), 1),
                network,
                search,
                f"{int(memory) / 2**20:,.0f}" if memory else "",
            ]
        )
    heads = ["file", "weights", "commit", "device", "precision", "date", "batch", "instances/s"]
    heads += ["network %", "search %", "peak MiB"]
    return markdown_table(heads, rows, 6)
