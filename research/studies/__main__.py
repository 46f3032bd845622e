"""``python -m research.studies``."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from georoutenet.device import choose_device
from georoutenet.errors import GeoRouteNetError
from research import studies
from research.studies import home, keep
from research.studies.plan import Study, packaged, read_study
from research.studies.run import RESERVE, Piece, say


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m research.studies",
        description=studies.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("list", "run", "unpack", "send", "keep"):
        own = verbs.add_parser(verb)
        own.add_argument(
            "--work", type=Path, default=Path("runs/studies"), help="folder of the runs that travels"
        )
        if verb != "unpack":
            own.add_argument("studies", nargs="*", default=[], metavar="STUDY")
        if verb in ("unpack", "keep"):
            own.add_argument("--kept", type=Path, default=Path("runs/kept"), help="folder of finished runs")
    run, unpack = verbs.choices["run"], verbs.choices["unpack"]
    run.add_argument("--seconds", type=float, required=True, help="for all, packing included")
    run.add_argument("--home", type=Path, required=True, help="folder for what is packed")
    run.add_argument("--device", default="auto")
    run.add_argument("--reserve", type=float, default=RESERVE, help="of the seconds, for packing")
    unpack.add_argument("folder", type=Path)
    verbs.choices["send"].add_argument("--to", type=Path, required=True, help="folder that travels")
    verbs.choices["send"].add_argument(
        "--limit", type=float, default=64, help="MiB of the checkout with all that travels (default: 64)"
    )
    verbs.choices["keep"].add_argument("--to", type=Path, default=Path(), help="the checkout")
    options = parser.parse_args(arguments)
    try:
        {"list": show, "run": work, "unpack": bring, "send": send, "keep": store}[options.verb](options)
    except GeoRouteNetError as error:
        raise SystemExit(f"error: {error}") from None


def show(options: argparse.Namespace) -> None:
    """Each run with its state."""
    for name in options.studies or packaged():
        study = read_study(name)
        print(f"{study.name}: {study.about}")
        piece = Piece([study], options.work, "cpu", 0)
        for run in study.runs:
            length = "" if run.given else f"{run.recipe().steps:,} steps"
            print(f"  {run.name:40} {length:>16}  {piece.state(run)}")
    if options.work.is_dir():
        print(f"{options.work}: {home.size_of(options.work) / 1e6:.1f} MB")


def work(options: argparse.Namespace) -> None:
    chosen = [read_study(name) for name in options.studies]
    if not chosen:
        raise GeoRouteNetError(f"which study? {', '.join(packaged())}")
    piece = Piece(chosen, options.work, str(choose_device(options.device)), options.seconds, options.reserve)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        piece.go()
    finally:  # what there is comes home whatever happened
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pack_all(chosen, options.work, options.home)
        signal.signal(signal.SIGTERM, before)
    for study in chosen:
        states = [piece.state(run) for run in study.runs]
        say(
            f"{study.name}: " + ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        )


def pack_all(chosen: list[Study], folder: Path, to: Path) -> None:
    """What others need of these studies."""
    files = [
        file
        for study in chosen
        for file in home.needed(folder, [run.folder for run in study.runs], weights=study.keeps_weights)
    ]
    parts, left = home.pack(folder, to, files)
    say(f"{sum(part.stat().st_size for part in parts) / 1e6:.1f} MB in {len(parts)} parts in {to}")
    for path in left:
        say(f"no room for {path}")


def bring(options: argparse.Namespace) -> None:
    for name in home.unpack(options.folder, options.work, options.kept):
        note = home.read_note(options.work / name)
        print(f"{name}: {'done' if note.get('evaluated') else 'trained' if note else 'not finished'}")
    print(f"{options.work} holds {home.size_of(options.work) / 1e6:.1f} MB")


def send(options: argparse.Namespace) -> None:
    """What another machine needs to go on with unfinished runs, and which ones are done."""
    names = [run.folder for name in options.studies or packaged() for run in read_study(name).runs]
    limit, others = int(options.limit * 2**20), home.checkout(options.to)
    parts, left = home.pack(
        options.work,
        options.to,
        home.needed(options.work, names, weights=False),
        again=True,
        room=limit - others,
    )
    if left:  # half of a state is none
        for part in parts:
            part.unlink()
        listed, size = ", ".join(map(str, left)), sum(path.stat().st_size for path in left)
        raise GeoRouteNetError(
            f"no room for {listed} ({size / 2**20:.1f} MiB before they are squeezed): the checkout has "
            f"{others / 2**20:.1f} of {options.limit:g} MiB. Send fewer studies, or have less in {home.CARRY}"
        )
    print(f"{sum(part.stat().st_size for part in parts) / 1e6:.1f} MB in {options.to}")


def store(options: argparse.Namespace) -> None:
    for name in options.studies or packaged():
        for path in keep.keep(read_study(name), options.kept, options.to):
            print(path)


if __name__ == "__main__":
    main()
