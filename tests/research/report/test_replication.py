"""Tables of the 2x2 over training seeds, from files with made-up gaps."""

from __future__ import annotations

from collections.abc import Sequence

from made_up import header

from georoutenet.evaluate.results import Results, Row
from research.report import replication
from research.report.tables import File

BEAM = "beam-1000"
MODELS = ["nar4tsp-pg", "nar4tsp-mcs", "georoutenet-pg", "georoutenet-mcs"]


def two_by_two(set_name: str, seeds: Sequence[str] = ("",), decoder: str = "greedy") -> list[File]:
    name, _, width = decoder.partition("-")
    files = []
    for number, model in enumerate(MODELS):
        encoder, objective = model.split("-")
        for seed in seeds:
            about = {"encoder": encoder, "objective": objective, "weights": f"paper-{model}{seed}"}
            rows = [Row(f"{set_name}-{k}", 50, 1 + (k + number) / 100, 1.0) for k in range(3)]
            found = header(set_name, **about, decoder=name, width=width)
            files.append(File("file", Results(found, rows)))
    return files


def test_shifts_have_a_table_for_each_of_the_papers_decoders() -> None:
    sets = ("test50", "ring50", "test100")
    files = [
        each
        for decoder in ("greedy", "beam-100", "beam-1000")
        for name in sets
        for each in two_by_two(name, decoder=decoder)
    ]
    lines = replication.shifts(files, [])
    assert [line for line in lines if line.endswith(":")] == ["Greedy:", "Beam-100:", "Beam-1000:"]
    assert sum(line.startswith("| ring50") for line in lines) == 3


def test_a_set_with_fewer_seeds_than_another_is_named() -> None:
    """TSPLIB is measured on a CPU, hence later."""
    both = [
        each for name in ("test50", "test100", "tsplib36") for each in two_by_two(name, ("", "-seed2"), BEAM)
    ]
    text = " ".join(replication.about_contrasts(both))
    assert "Two training seeds, 1234 and 2, of 20 million" in text
    assert "degrees of freedom: four)" in text
    third = [each for name in ("test50", "test100") for each in two_by_two(name, ("-seed3",), BEAM)]
    text = " ".join(replication.about_contrasts([*both, *third]))
    assert "Three training seeds, 1234, 2 and 3 (tsplib36: 1234 and 2), of 20 million" in text
    assert "degrees of freedom: eight, tsplib36 four)" in text
    assert replication.about_contrasts([])
