"""Examples with which the help of each command begins."""

from __future__ import annotations

import inspect

import typer

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("georoutenet demo", "georoutenet solve customers.csv --plot route.png", "georoutenet train laptop"),
    "solve": (
        "georoutenet solve customers.csv --plot route.png --output route.gpx",
        "georoutenet solve customers.csv --start depot --open --max-seconds 5",
        "georoutenet solve *.tsp --json > tours.json",
    ),
    "bulk": (
        "georoutenet bulk instances.parquet tours",
        "georoutenet bulk instances.npy tours --workers 4",
    ),
    "demo": ("georoutenet demo", "georoutenet demo --out pictures --seconds 10"),
    "length": ("georoutenet length cities.csv tour.csv", "georoutenet length berlin52.tsp my.tour --open"),
    "data": ("georoutenet data list", "georoutenet data show test50"),
    "data list": ("georoutenet data list", "georoutenet data list --markdown"),
    "data show": ("georoutenet data show test50", "georoutenet data show tsplib36"),
    "data make": ("georoutenet data make test50 val50", "georoutenet data make"),
    "data tsplib": ("georoutenet data tsplib", "georoutenet data tsplib --folder tsplib"),
    "reference": (
        "georoutenet reference test50 --solver lkh",
        "georoutenet reference test50 --solver or-tools",
    ),
    "train": (
        "georoutenet train laptop",
        "georoutenet train laptop --max-seconds 600 --out runs/mine",
        "georoutenet train mine.toml --set batch=32",
    ),
    "curve": (
        "georoutenet curve runs/laptop",
        "georoutenet curve runs/a runs/b --by seconds --output both.png",
    ),
    "evaluate": (
        "georoutenet evaluate georoutenet --set test50 --limit 100",
        "georoutenet evaluate runs/laptop/best.safetensors --set test20",
    ),
    "compare": ("georoutenet compare a.csv b.csv", "georoutenet compare a.csv --worst worst.png"),
    "tables": ("georoutenet tables results", "georoutenet tables results --no-pictures"),
    "weights": (
        "georoutenet weights",
        "georoutenet weights georoutenet",
        "georoutenet weights my.safetensors --json",
    ),
    "doctor": ("georoutenet doctor", "georoutenet doctor > report.txt"),
    "serve": ("georoutenet serve", "georoutenet serve --port 9000 --max-seconds 5"),
}


def show_examples(app: typer.Typer, prefix: str = "") -> None:
    """Put the examples before what ``app`` and its commands say of themselves."""
    text = str(app.info.help)
    app.info.short_help, app.info.help = text, _with_examples(prefix.strip(), text)
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        text = inspect.cleandoc(command.help or command.callback.__doc__ or "")
        command.short_help = command.short_help or text.partition("\n\n")[0].replace("\n", " ")
        command.help = _with_examples(prefix + name, text)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            show_examples(group.typer_instance, f"{prefix}{group.typer_instance.info.name} ")


def _with_examples(name: str, text: str) -> str:
    lines = EXAMPLES.get(name, ())
    return "\b\n" + "\n".join(lines) + "\n\n" + text if lines else text
