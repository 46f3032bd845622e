from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from georoutenet.cli import app
from georoutenet.errors import InputError
from georoutenet.evaluate.results import Results, Row, write_results
from georoutenet.io.optima import published_optima
from georoutenet.io.tsplib import TSPLIB27


def test_tables_writes_a_page_and_its_numbers(tmp_path: Path) -> None:
    keys = ("weights", "sha256", "encoder", "objective", "set", "decoder", "width")
    header = dict(zip(keys, ("tiny", "ab", "georoutenet", "pg", "tsplib27", "greedy", ""), strict=True))
    rows = [Row(name, published_optima()[name].n, 103.0, 100.0) for name in TSPLIB27]
    write_results(tmp_path / "files" / "t.csv", Results(header, rows))
    write_results(tmp_path / "files" / "part.csv", Results(header, rows[:3]))
    out = tmp_path / "page.md"
    done = CliRunner().invoke(app, ["tables", str(tmp_path / "files"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "5 numbers from 1 results, 1 pictures" in done.stdout
    assert (tmp_path / "images" / "results-interaction.png").stat().st_size > 10_000
    assert not list(tmp_path.rglob("*.svg"))
    assert "files/part.csv covers only part" in done.stderr
    beside = (f"3.00 | {paper}" for paper in ("3.16", "2.28", "5.64", "16.77", "7.07"))
    assert f"| GeoRouteNet-PG | tiny | Greedy | {' | '.join(beside)} |" in out.read_text()
    assert len((tmp_path / "page.csv").read_text().splitlines()) == 6


def test_tables_without_pictures(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    options = ["--out", str(tmp_path / "page.md"), "--no-pictures"]
    done = CliRunner().invoke(app, ["tables", str(tmp_path / "files"), *options])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "images").exists()


def test_tables_refuses(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["tables", str(tmp_path / "none")])
    assert isinstance(done.exception, InputError)
    assert CliRunner().invoke(app, ["tables", str(tmp_path), "--out", "page.txt"]).exit_code == 2
