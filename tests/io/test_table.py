from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from within import processor_seconds

from georoutenet.errors import GeoRouteNetWarning, InputError
from georoutenet.io.columns import named_columns
from georoutenet.io.files import read_instance, read_tour, write_tour
from georoutenet.io.table import parse_table

GERMAN = (
    "Kunde_ID;Name;lat;lon;Adresse;Menge;PLZ\r\n"
    'K1;Café Müller;48,25;11,5;"Weg 1\nHaus ""A""";12;01067\r\n'
    "K2;Groß & Söhne;48,5;11,25;Weg 2;7;80331\r\n"
    "K3;Œuvre;48,75;11,75;;;80333\r\n"
)
COLUMNS = {
    "Kunde_ID": ("K1", "K2", "K3"),
    "Name": ("Café Müller", "Groß & Söhne", "Œuvre"),
    "Adresse": ('Weg 1\nHaus "A"', "Weg 2", ""),
    "Menge": (12, 7, None),
    "PLZ": ("01067", "80331", "80333"),
}


def test_a_spreadsheet_as_excel_saves_it(tmp_path: Path) -> None:
    path = tmp_path / "customers.csv"
    path.write_bytes(GERMAN.encode("cp1252"))
    with pytest.warns(GeoRouteNetWarning, match="not UTF-8 text: read as Windows-1252"):
        instance = read_instance(path)
    assert instance.latlon is not None
    assert instance.latlon.tolist() == [[48.25, 11.5], [48.5, 11.25], [48.75, 11.75]]
    assert instance.columns == COLUMNS
    assert instance.id_column == "Kunde_ID"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_that_say_what_they_are(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "customers.txt"
    path.write_bytes(GERMAN.replace(";", "\t").encode(encoding))
    assert read_instance(path).columns["Name"] == COLUMNS["Name"]


@pytest.mark.parametrize("name", ["customers.xlsx", "customers.XLS", "customers.csv", "customers.txt"])
def test_a_workbook_is_not_a_table(tmp_path: Path, name: str) -> None:
    """It was called an unknown extension, or binary noise a header with one column."""
    path = tmp_path / name
    path.write_bytes(b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0")
    with pytest.raises(InputError, match=r"spreadsheet's own format; save it there as CSV UTF-8"):
        read_instance(path)


@pytest.mark.parametrize("extension", ["csv", "json", "geojson"])
def test_columns_go_through_every_file(tmp_path: Path, extension: str) -> None:
    """Written and read again, the cities are in visiting order and nothing of them is lost."""
    instance = parse_table(GERMAN)
    path = tmp_path / f"tour.{extension}"
    write_tour(path, [2, 0, 1], instance)
    again = read_instance(path)
    assert instance.latlon is not None
    assert again.latlon is not None
    assert again.latlon.tolist() == instance.latlon[[2, 0, 1]].tolist()
    assert again.columns == {name: tuple(values[k] for k in (2, 0, 1)) for name, values in COLUMNS.items()}
    assert again.id_column == "Kunde_ID"


@pytest.mark.parametrize("extension", ["csv", "json"])
def test_columns_with_the_names_of_ours_are_kept_apart(tmp_path: Path, extension: str) -> None:
    instance = parse_table("x,y,city,Lat\n0,1,Rome,a\n2,3,Bonn,b\n")
    write_tour(tmp_path / f"t.{extension}", [1, 0], instance)
    assert "given_city" in (tmp_path / f"t.{extension}").read_text()
    again = read_instance(tmp_path / f"t.{extension}")
    assert again.columns == {"city": ("Bonn", "Rome"), "Lat": ("b", "a")}
    assert again.coordinates.tolist() == [[2, 3], [0, 1]]


def test_a_table_with_names_is_marked_for_excel(tmp_path: Path) -> None:
    write_tour(tmp_path / "names.csv", [0, 1, 2], parse_table(GERMAN))
    assert (tmp_path / "names.csv").read_bytes().startswith(b"\xef\xbb\xbfposition;city;")
    write_tour(tmp_path / "plain.csv", [0, 1], parse_table("0,1\n2,3\n"))
    assert (tmp_path / "plain.csv").read_bytes().startswith(b"position,city,")


@pytest.mark.parametrize(
    "text",
    [
        "name\tx\ty\nNew York\t1\t2\n\t3\t4\n",
        "name\tx\ty\nNew York\t1,0\t2,0\n\t3,0\t4,0\n",
        'name\tx\ty\n"New York"\t1\t2\n\t3\t4\n',
    ],
)
def test_tabs(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.tsv").write_text(text)
    for instance in (read_instance(tmp_path / "a.tsv"), parse_table(text)):
        assert instance.coordinates.tolist() == [[1, 2], [3, 4]]
        assert instance.columns == {"name": ("New York", "")}
        assert instance.id_column is None  # one has no name


def test_tabs_that_are_only_blanks() -> None:
    for text in ("1,\t2\n3,\t4\n", "1\t2\n3\t\t4\n", "x\t\ty\n1 2\n3\t4\n"):
        assert parse_table(text).coordinates.tolist() == [[1, 2], [3, 4]]


def test_numbers_with_commas_and_no_header() -> None:
    assert parse_table("1,5;2\n-3,25;4e1\n").coordinates.tolist() == [[1.5, 2], [-3.25, 40]]


def test_z_and_a_second_pair_are_named_as_ignored() -> None:
    with pytest.warns(GeoRouteNetWarning, match="column z is ignored"):
        instance = parse_table("x,y,Z\n1,2,3\n")
    assert instance.columns == {"Z": (3,)}
    with pytest.warns(GeoRouteNetWarning, match="x and y are ignored"):
        instance = parse_table("x,y,lat,lon\n1,2,3,4\n")
    np.testing.assert_array_equal(instance.latlon, [[3, 4]])  # type: ignore[arg-type]
    assert instance.columns == {}


@pytest.mark.parametrize(
    ("header", "rows", "found"),
    [
        ("name,ID", ["a,1", "b,2"], "ID"),
        ("name,customer_id", ["a,1", "b,2"], "customer_id"),
        ("name,customer_id", ["a,1", "b,1"], "name"),  # one that tells them apart
        ("name,customer_id", ["a,1", "a,1"], None),
        ("paid,width", ["a,1", "b,2"], None),
    ],
)
def test_which_column_holds_the_ids(header: str, rows: list[str], found: str | None) -> None:
    text = "\n".join([f"x,y,{header}", *(f"{k},{k},{row}" for k, row in enumerate(rows))])
    assert parse_table(text).id_column == found
    assert parse_table(text, id_column="NAME").id_column == "name" if "name" in header else True


def test_ids_that_are_not_there() -> None:
    with pytest.raises(InputError, match="t: there is no column 'no' of ids; columns: a, b"):
        parse_table("a,x,y,b\n1,2,3,4\n", "t", id_column="no")
    with pytest.raises(InputError, match="t:1: there is no column 'no' of ids: the table has no header"):
        parse_table("1,2\n", "t", id_column="no")


def test_names_of_columns() -> None:
    instance = parse_table("x,y,a,a,,\n1,2,3,4,5,\n")
    assert instance.columns == {"a": (3,), "a_2": (4,), "column_3": (5,)}


def test_only_numbers_that_are_written_back_as_they_were_become_numbers() -> None:
    instance = parse_table("x,y,a,b,c,d,e\n1,2,1,1.5,007,1.50,nan\n1,2,,2.5,1,2,1\n")
    kept = {"a": (1, None), "b": (1.5, 2.5), "c": ("007", "1"), "d": ("1.50", "2"), "e": ("nan", "1")}
    assert instance.columns == kept


@pytest.mark.parametrize("mark", ["sep=;", '"sep=;"', "sep=,"])
def test_the_line_that_tells_excel_the_separator(mark: str) -> None:
    separator = mark.strip('"')[-1]
    text = f"{mark}\nid;lat;lon\na;1;2\nb;3;4\n".replace(";", separator)
    found = parse_table(text)
    assert list(found.ids or ()) == ["a", "b"]
    assert found.coordinates.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(InputError, match="text:3: expected a number"):
        parse_table(text.replace("1", "x"))


def test_a_table_with_decimal_commas_is_written_as_it_came(tmp_path: Path) -> None:
    """An Excel that saves semicolons and decimal commas shows any other table as one column of text."""
    text = "Nr;Name;lat;lon;Menge;Preis\n1;Café;48,1372;11,5756;12;3,50\n2;b;48;11,6;7;4,00\n"
    cities = parse_table(text)
    path = tmp_path / "route.csv"
    write_tour(path, [1, 0], cities)
    header, first, second = path.read_text(encoding="utf-8-sig").splitlines()
    assert header == "position;city;lat;lon;Nr;Name;Menge;Preis"
    assert first == "0;1;48,0;11,6;2;b;7;4,00"
    assert second == "1;0;48,1372;11,5756;1;Café;12;3,50"
    again = read_instance(path)
    assert again.coordinates.tolist() == cities.coordinates[[1, 0]].tolist()
    assert again.decimal_commas
    assert list(again.columns) == ["Nr", "Name", "Menge", "Preis"]
    assert read_tour(path, 2).tolist() == [1, 0]
    for separator, dot in ((";", "."), (",", ".")):
        plain = parse_table(text.replace(",", dot).replace(";", separator))
        assert not plain.decimal_commas
        write_tour(path, [1, 0], plain)
        assert path.read_text(encoding="utf-8-sig").startswith("position,city,lat,lon,Nr")
        assert read_tour(path, 2).tolist() == [1, 0]


def test_columns_of_one_name_are_counted_once() -> None:
    """To look for a free number from 2 on for each took quadratic time: hours for a header of a megabyte."""
    with processor_seconds(20):
        found = parse_table("x,y" + 50_000 * ",a" + "\n1,2" + 50_000 * ",1" + "\n").columns
    assert list(found)[:3] == ["a", "a_2", "a_3"]
    assert list(found)[-1] == "a_50000"


def test_columns_with_the_names_that_were_to_be_given() -> None:
    assert list(named_columns(["a", "a_2", "a", "a"], [[1]] * 4)) == ["a", "a_2", "a_3", "a_4"]


def test_long_quotes_are_read_once() -> None:
    """Not once more for each line that a quoted field goes on."""
    row = '"' + "\n".join(199 * ["a" * 100]) + '",1,2\n'
    with processor_seconds(5):
        instance = parse_table("name,x,y\n" + 300 * row)
    assert instance.n == 300
    assert instance.columns["name"][0].count("\n") == 198


def test_quotes_that_do_not_fit_together_name_their_line() -> None:
    for text, line in (('x,y\n1,2\n"3,4\n5,6\n', 3), ('x,y\n"1"a,2\n3,4\n', 2)):
        with pytest.raises(InputError, match=rf"text:{line}: "):
            parse_table(text)
    with pytest.raises(InputError, match="text:2: "):  # closed, but not within 200 lines
        parse_table("name,x,y\n" + '"' + 300 * "a\n" + '",1,2\n')
