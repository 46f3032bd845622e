import gzip
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from georoutenet.cli import data as module
from georoutenet.errors import InputError
from georoutenet.io.datasets import DATASETS


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOROUTENET_CACHE", str(tmp_path / "cache"))
    for each in DATASETS.values():  # coordinates kept by an earlier test would hide the cache
        vars(each).pop("coordinates", None)
    app = typer.Typer()
    app.callback()(lambda: None)
    module.register(app)

    def call(*arguments):
        result = CliRunner().invoke(app, ["data", *map(str, arguments)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


def test_list_names_every_set(run):
    lines = run("list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(DATASETS)
    assert "10,000" in lines[1]
    assert "validation" in lines[1]
    assert "published" in lines[-1]


def test_the_table_in_the_documentation_is_the_printed_one(run):
    page = Path(__file__).parents[2] / "docs" / "datasets.md"
    if not page.exists():
        pytest.skip("the documentation is not part of this copy of the source")
    documented = page.read_text(encoding="utf-8")
    table = run("list", "--markdown").stdout.strip()
    assert "| `val50` | validation | 10,000 | 50 | 1234 | 5.6948" in table
    assert table in documented, "renew it with: georoutenet data list --markdown"


def test_show_val50(run):
    shown = run("show", "val50").stdout
    assert "validation" in shown
    assert "seed 1234" in shown
    assert DATASETS["val50"].sha256 in shown
    assert "mean length 5.6948" in shown
    assert "of 10,000 proven" in shown


def test_show_a_set_without_references(run, monkeypatch):
    import georoutenet.evaluate.references as references

    monkeypatch.setattr(references, "has_references", lambda name: False)
    assert "georoutenet reference ring200" in run("show", "ring200").stdout


def test_show_tsplib(run):
    shown = run("show", "tsplib27").stdout
    assert "27: eil51, berlin52" in shown
    assert "published optima" in shown


def test_unknown_name(run):
    with pytest.raises(InputError, match="known: val50"):
        run("show", "val51")
    with pytest.raises(InputError, match="known: val50"):
        run("make", "val51")


@pytest.mark.parametrize(("name", "count"), [("val50", 1), ("grid50", 7)])
def test_plot(run, tmp_path, name, count):
    picture = tmp_path / "picture.png"
    result = run("show", name, "--plot", picture, "--instances", count)
    assert str(picture) in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plot_refuses_other_formats(run, tmp_path):
    with pytest.raises(InputError, match=r"unknown picture format '.docx'; allowed: \.png, \.svg, \.pdf"):
        run("show", "val50", "--plot", tmp_path / "picture.docx")
    assert not (tmp_path / "picture.docx").exists()


def test_make_some(run, tmp_path):
    result = run("make", "ring50", "test500")
    paths = [line.split()[1] for line in result.stdout.splitlines()]
    assert [np.load(path).shape for path in paths] == [(1000, 50, 2), (128, 500, 2)]


def test_make_all(run, tmp_path):
    run("make")
    names = {path.stem for path in (tmp_path / "cache" / "datasets").iterdir()}
    assert names == {name for name, each in DATASETS.items() if each.is_random}


def test_make_refuses_tsplib(run):
    with pytest.raises(InputError, match="different sizes"):
        run("make", "tsplib36")


def test_tsplib_download(run, tmp_path, monkeypatch):
    """A small mirror on this machine."""
    import georoutenet.io.tsplib_download as download

    contents = b"NAME : tiny\n"
    served = tmp_path / "served"
    served.mkdir()
    (served / "tiny.tsp.gz").write_bytes(gzip.compress(contents))
    monkeypatch.setattr(
        download, "tsplib_checksums", lambda: {"tiny.tsp": hashlib.sha256(contents).hexdigest()}
    )

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(served))

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            result = run("tsplib", "--address", f"http://127.0.0.1:{server.server_port}/")
            again = run("tsplib", "--address", f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
    assert "1 files fetched" in result.stdout
    assert "0 files fetched" in again.stdout
    assert (tmp_path / "cache" / "tsplib" / "tiny.tsp").read_bytes() == contents
