"""``georoutenet doctor``: what runs here, and why."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor() -> None:
    """Print versions, devices, and in which form the network, the search and the rest run there, and why."""
    from georoutenet.solver.versions import report

    typer.echo("\n".join(report()))
