"""Pack what ``georoutenet evaluate`` wrote for one model into one file, or take it out again.

    python -m research.pack results/georoutenet.npz evaluated/georoutenet     # add or replace cells
    python -m research.pack --unpack results/georoutenet.npz evaluated/again  # CSV files as they were
    python -m research.pack --references results                 # measure all against today's references

Each file ``SET-DECODER.csv`` or ``.csv.gz`` becomes the cell ``SET-DECODER``. Results of other weights than
those in the packed file already are refused; ``--replace`` leaves nothing of what it held before. Reference
lengths go to ``references.npz`` in the same folder, which all packed files there share.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.evaluate.packed import SHARED, Packed, cell_name, write_packed
from georoutenet.evaluate.references import load_references
from georoutenet.evaluate.results import DECIMALS, Results, read_results, write_results
from georoutenet.io.datasets import dataset


def read_folder(folder: Path) -> dict[str, Results]:
    """The CSV files of a folder by the names of their cells."""
    paths = sorted(each for each in folder.glob("*.csv*") if each.suffix != ".partial")
    if not paths:
        raise InputError(f"there are no results in {folder}")
    return {cell_name(path): read_results(path) for path in paths}


def pack_folder(path: Path, folder: Path, *, replace: bool = False) -> list[str]:
    """Put the results of a folder into the packed file; the names of all its cells."""
    cells = {} if replace or not path.exists() else Packed(path).results()
    cells |= read_folder(folder)
    hashes = {results.header.get("sha256", "") for results in cells.values()}
    if len(hashes) != 1:
        raise InputError(f"{path} would hold results of {len(hashes)} files of weights, not of one")
    write_packed(path, cells, share_tables=True)
    return list(cells)


def measure_again(folder: Path) -> dict[str, int]:
    """Put the packaged references of today into every packed file of a folder; rows that changed, by file.

    Lengths stay as they are. ``references.npz`` is made anew, so it holds no table that nobody uses.
    """
    paths = sorted(path for path in folder.glob("*.npz") if path.name != SHARED)
    packed = {path: Packed(path).results() for path in paths}
    (folder / SHARED).unlink(missing_ok=True)
    changed = {}
    for path, cells in packed.items():
        renewed = {name: _with_references(results) for name, results in cells.items()}
        changed[path.name] = sum(
            before.reference != after.reference
            for name, results in cells.items()
            for before, after in zip(results.rows, renewed[name].rows, strict=True)
        )
        write_packed(path, renewed, share_tables=True)
    return changed


def _with_references(results: Results) -> Results:
    """The same rows against the packaged references; published optima do not change."""
    data = dataset(results.header["set"])
    if not data.is_random:
        return results
    lengths = load_references(data.name).lengths.round(DECIMALS)
    place = {f"{data.name}-{k}": float(length) for k, length in enumerate(lengths)}
    return Results(results.header, [row._replace(reference=place[row.instance]) for row in results.rows])


def unpack(path: Path, folder: Path) -> list[Path]:
    """Write each cell as the CSV file that it was."""
    written = []
    for name, results in Packed(path).results().items():
        ending = ".csv.gz" if dataset(results.header["set"]).is_random else ".csv"  # as evaluate does
        written.append(folder / f"{name}{ending}")
        write_results(written[-1], results)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="the packed file, .npz; a folder with --references")
    parser.add_argument("folder", type=Path, nargs="?", help="the folder of CSV files")
    parser.add_argument("--unpack", action="store_true")
    parser.add_argument("--replace", action="store_true", help="drop the cells that were there before")
    parser.add_argument("--references", action="store_true", help="measure against today's references")
    options = parser.parse_args()
    if options.references:
        for name, rows in measure_again(options.file).items():
            print(f"{name}: {rows} rows have another reference")
        return
    if options.folder is None:
        parser.error("which folder of CSV files?")
    if options.file.suffix != ".npz":
        parser.error(f"a packed file ends in .npz, got {options.file}")
    try:
        if options.unpack:
            print(f"{len(unpack(options.file, options.folder))} files in {options.folder}")
        else:
            names = pack_folder(options.file, options.folder, replace=options.replace)
            print(f"{options.file}: {len(names)} cells, {options.file.stat().st_size:,} bytes")
    except GeoRouteNetError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
