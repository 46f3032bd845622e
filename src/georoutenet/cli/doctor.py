"""``georoutenet doctor``: what runs here, and why."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor() -> None:
    """Print versions, devices, and which form of the network runs on them for what, and why."""
    from georoutenet.policy.versions import report

    typer.echo("\n".join(report()))
