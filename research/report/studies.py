"""Tables of the studies in ``research/studies``: each run beside the one that it changes one thing of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from georoutenet.errors import InputError
from georoutenet.evaluate.names import decoder_name
from georoutenet.evaluate.results import Results
from georoutenet.evaluate.statistics import LEVEL
from georoutenet.io.datasets import DATASETS
from research.report.markdown import markdown_table
from research.report.tables import File
from research.studies.plan import FIRST_SEED, Study, packaged, read_study

ABOUT = """\
Runs of `research/studies`, made by `python -m research.studies`: each changes one thing of the run in the
first row of its table. Mean gaps over seeds, in percent; in parentheses how many points the gap is larger
(+) or smaller (-) than the first row's on the same instances, with the same seed, seed by seed (weights
that runs began with have one seed, which stands for all). *Between seeds*: half of the 95 % interval of
such a difference, its variance between seeds pooled over the rows (t); what is less than that says
nothing. Of components and settings test100 with Beam-100 was declared to count before any of them ran
([protocol](protocol.md#what-is-measured)); all else is exploration.""".splitlines()


class Key(NamedTuple):
    """A run of one seed on a set with a decoder."""

    run: str
    seed: int
    decoder: str
    set: str


def split_seed(name: str) -> tuple[str, int]:
    """``short-full-seed2`` is run ``short-full`` with seed 2."""
    match = re.fullmatch(r"(.+)-seed(\d+)", name)
    return (match[1], int(match[2])) if match else (name, FIRST_SEED)


def studies(files: Sequence[File], others: Sequence[File]) -> list[str]:
    """A part for each study that has results in ``files``; its first row may be among ``others``."""
    found = _by_key(files)
    known = {**_by_key(others), **found}
    lines: list[str] = []
    for name in packaged():
        study = read_study(name)
        runs = list(dict.fromkeys(split_seed(run.name)[0] for run in study.runs))
        if any(key.run in runs and key.run != study.base for key in found):
            lines += [f"`{name}`: {study.about}.", "", *_tables(study, runs, known)]
    return lines


def _by_key(files: Sequence[File]) -> dict[Key, Results]:
    found: dict[Key, Results] = {}
    for _, results in files:
        header = results.header
        key = Key(*split_seed(header["weights"]), decoder_name(header), header["set"])
        found.setdefault(key, results)
    return found


def _tables(study: Study, runs: Sequence[str], known: dict[Key, Results]) -> list[str]:
    """A table for each decoder."""
    names = list(dict.fromkeys([study.base, *runs])) if study.base else list(runs)
    trained = not any(run.given and run.name == study.base for run in study.runs)
    sets = sorted({set_name for set_name, _ in study.evaluations}, key=list(DATASETS).index)
    lines = []
    for decoder in dict.fromkeys(key.decoder for key in known if key.run in runs):
        rows, spreads = [], {set_name: list[np.ndarray]() for set_name in sets}
        for run in names:
            cells = [_cell(known, run, study.base, decoder, each, spreads[each], trained) for each in sets]
            if any(cells):
                seeds = sorted(
                    {key.seed for key in known if key.run == run}, key=lambda s: (s != FIRST_SEED, s)
                )
                rows.append([run, " / ".join(map(str, seeds)), *cells])
        if any(spreads.values()):
            rows.append(["between seeds", "", *(_between_seeds(spreads[each]) for each in sets)])
        lines += [f"{decoder}:", "", *markdown_table(["run", "seeds", *sets], rows, 2)]
    return lines


def _cell(
    known: dict[Key, Results],
    run: str,
    base: str,
    decoder: str,
    set_name: str,
    spread: list[np.ndarray],
    trained: bool,
) -> str:
    """The mean gap of a run over its seeds, and the differences to the base with the same seed, or to a given
    one, which has no other seeds; those of several seeds are added to ``spread``."""
    own = {key.seed: each for key, each in known.items() if (key.run, *key[2:]) == (run, decoder, set_name)}
    if not own:
        return ""
    gaps, differences = [], []
    for seed, results in sorted(own.items(), key=lambda item: (item[0] != FIRST_SEED, item[0])):
        with_it = known.get(Key(base, seed if trained else FIRST_SEED, decoder, set_name))
        if with_it is None or run == base:
            gaps.append(float(results.gaps.mean()))
            continue
        count = min(len(results), len(with_it))
        if [row.instance for row in results.rows[:count]] != [row.instance for row in with_it.rows[:count]]:
            raise InputError(f"{run} and {base} on {set_name}: results are of different instances")
        gaps.append(float(results.gaps[:count].mean()))
        differences.append(gaps[-1] - float(with_it.gaps[:count].mean()))
    if len(differences) > 1:
        spread.append(np.array(differences))
    text = f"{np.mean(gaps):.3f}"
    return f"{text} ({' / '.join(f'{each:+.3f}' for each in differences)})" if differences else text


def _between_seeds(spread: Sequence[np.ndarray]) -> str:
    """Half of the interval of a mean difference of as many seeds as the rows have."""
    if not spread:
        return ""
    freedom = sum(len(each) - 1 for each in spread)
    variance = sum(float(((each - each.mean()) ** 2).sum()) for each in spread) / freedom
    seeds = min(len(each) for each in spread)
    return f"{float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * (variance / seeds) ** 0.5:.3f}"
