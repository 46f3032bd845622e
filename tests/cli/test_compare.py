from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from georoutenet.cli import app
from georoutenet.errors import InputError
from georoutenet.evaluate.evaluation import evaluate
from georoutenet.evaluate.packed import write_packed
from georoutenet.evaluate.results import Results, Row, read_results, write_results
from georoutenet.evaluate.settings import Settings


def results(path: Path, lengths: list[float], set_name: str = "val50", decoder: str = "greedy") -> Path:
    header = {
        "weights": "tiny",
        "set": set_name,
        "decoder": decoder,
        "width": "8" if decoder == "beam" else "",
    }
    write_results(path, Results(header, [Row(f"{set_name}-{k}", 50, x, 10.0) for k, x in enumerate(lengths)]))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


@pytest.mark.parametrize("extension", ["png", "svg"])
def test_compare(tmp_path: Path, extension: str) -> None:
    a = results(tmp_path / "a.csv", [10.0, 11.0, 12.0, 11.0])
    b = results(tmp_path / "b.csv.gz", [10.0, 10.0, 12.5], decoder="beam")
    picture = tmp_path / f"c.{extension}"
    done = run(a, b, "--show", 1, "--plot", picture)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "val50: 3 instances that both have (4, 3)"
    assert lines[1].split() == ["A", "mean", "gap", "10.0000", "%", "tiny", "Greedy"]
    assert lines[2].split() == ["B", "mean", "gap", "8.3333", "%", "tiny", "Beam-8"]
    assert lines[3].startswith("B - A  -1.6667 points, 95 % interval -10.0000 to +5.0000")
    assert lines[4] == "B is shorter on 1, equal on 1, longer on 1"
    assert lines[5].split() == ["val50-1", "10.0000", "->", "0.0000", "%", "-10.0000"]
    assert picture.stat().st_size > 1000


def test_packed_cells_are_compared_like_files(tmp_path: Path) -> None:
    paths = {name: results(tmp_path / f"{name}.csv", [10.0, 11.0 + k]) for k, name in enumerate("ab")}
    write_packed(tmp_path / "tiny.npz", {name: read_results(path) for name, path in paths.items()})
    plain = run(*paths.values())
    assert plain.exit_code == 0, plain.output
    assert run(f"{tmp_path}/tiny.npz:a", f"{tmp_path}/tiny.npz:b").stdout == plain.stdout
    assert run(f"{tmp_path}/tiny.npz:a", paths["b"]).stdout == plain.stdout
    assert "name one" in str(run(tmp_path / "tiny.npz").exception)


def test_equal_results(tmp_path: Path) -> None:
    a = results(tmp_path / "a.csv", [10.0, 11.0])
    done = run(a, a)
    assert done.stdout.splitlines()[-1] == "B is shorter on 0, equal on 2, longer on 0"


def test_different_sets_are_refused(tmp_path: Path) -> None:
    done = run(results(tmp_path / "a.csv", [10.0]), results(tmp_path / "b.csv", [10.0], "test50"))
    assert isinstance(done.exception, InputError)
    assert "different sets" in str(done.exception)


def test_one_file_beside_the_best_known(tmp_path: Path) -> None:
    a = results(tmp_path / "a.csv", [10.0, 11.0, 12.0, 10.5])
    done = run(a, "--show", 2)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "val50: 4 instances"
    assert lines[1].startswith("mean gap    8.7500 %  tiny Greedy, 95 % interval")
    assert lines[2] == "as short as the best known on 1, longer on 3"
    assert [line.split()[:2] for line in lines[3:]] == [["val50-2", "20.0000"], ["val50-1", "10.0000"]]
    refused = run(a, "--plot", tmp_path / "x.png")
    assert refused.exit_code == 2
    assert "needs two files" in refused.output


def test_the_worst_instance_is_drawn(tmp_path: Path) -> None:
    """With the packaged weights: their tours are the file's."""
    settings = Settings(limit=3)
    path = tmp_path / "a.csv"
    made = evaluate("georoutenet-50", "test20", path, settings, device="cpu")
    done = run(path, "--worst", tmp_path / "worst.svg")
    assert done.exit_code == 0, done.output
    worst = made.rows[int(made.gaps.argmax())]
    assert done.stdout.splitlines()[-1] == f"{worst.instance} drawn to {tmp_path / 'worst.svg'}"
    assert (tmp_path / "worst.svg").stat().st_size > 10_000
    named = run(path, "--worst", tmp_path / "other.png", "--instance", "test20-1")
    assert named.stdout.splitlines()[-1].startswith("test20-1 drawn")
