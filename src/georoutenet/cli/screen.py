"""What reaches the terminal. Names, comments and errors quote files, and a file may hold anything: escape
sequences that move the cursor or set the title, marks that turn text around, markup that rich would obey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from georoutenet.io.names import visible

if TYPE_CHECKING:
    from rich.text import Text


def styled(text: object) -> Text:
    """``visible`` text for tables, bars and spinners of rich, which take it as it is: no markup, no emoji."""
    from rich.text import Text

    return Text(visible(text))


def say(*lines: object, err: bool = False) -> None:
    """Print lines, each ``visible``."""
    for line in lines:
        typer.echo(visible(line), err=err)


def complain(error: object) -> None:
    """Print an error in one line."""
    typer.secho(f"error: {visible(error)}", fg=typer.colors.RED, err=True)


def show_warning(message: Warning | str, category: type[Warning], *where: Any, **others: Any) -> None:
    """In place of ``warnings.showwarning``: one line, as a note."""
    say(f"note: {message}", err=True)
