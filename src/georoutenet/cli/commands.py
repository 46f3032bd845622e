"""The command line. Each subcommand lives in a module of its own and imports heavy packages only when it
runs, so that ``georoutenet --help`` starts quickly."""

from __future__ import annotations

import atexit
import gc
import itertools
import sys
import warnings
from typing import Annotated

import typer

from georoutenet import __version__
from georoutenet.cli import begin
from georoutenet.cli.examples import show_examples
from georoutenet.cli.screen import complain, say, show_warning
from georoutenet.errors import GeoRouteNetError

app = typer.Typer(
    name="georoutenet",
    help="Short tours through cities in the plane, by a neural policy and local search.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its frames cut words at 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)


LOAD_FIRST = ("solve", "bulk", "demo", "evaluate", "train")
"""Subcommands that import large packages, during which Ctrl-C ends the process on the spot. ``solve`` and
``bulk`` call ``begin()`` when they have loaded them; what the others write may be broken off at any time."""


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"georoutenet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version)
    ] = False,
) -> None:
    if context.invoked_subcommand not in LOAD_FIRST:
        begin()


def _register_subcommands() -> None:
    from georoutenet.cli import (
        bulk,
        compare,
        curve,
        data,
        demo,
        doctor,
        evaluate,
        length,
        reference,
        serve,
        solve,
        tables,
        train,
        weights,
    )

    modules = (
        *(solve, bulk, serve, demo, length, data, reference),
        *(train, curve, evaluate, compare, tables, weights, doctor),
    )
    for module in modules:
        module.register(app)
    show_examples(app)


_register_subcommands()


def _allowed(error: Exception) -> str:
    """The options or subcommands of the command that refused one, for an error message; else empty."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    if type(error).__name__ == "NoSuchOption":
        names = [name for parameter in getattr(command, "params", []) for name in parameter.opts]
        return ", ".join(sorted(name for name in [*names, "--help"] if name.startswith("--")))
    if str(getattr(error, "message", "")).startswith("No such command"):
        return ", ".join(sorted(getattr(command, "commands", {})))
    return ""


def _given(error: Exception) -> str:
    """The words that came with the option that was refused, where the message does not repeat them."""
    names = [name for name in getattr(getattr(error, "param", None), "opts", []) if name.startswith("-")]
    words: list[str] = []
    for word, following in itertools.pairwise([*sys.argv[1:], ""]):
        name, equals, value = word.partition("=")
        if name in names:
            words.append(value if equals else following)
    message = error.format_message() if hasattr(error, "format_message") else ""
    return f", got {words[-1]!r:.60}" if words and words[-1] not in message else ""


def _spare_the_collector() -> None:
    """Make the garbage collector look seldom, and not at the end.

    Importing PyTorch and Numba leaves 400,000 objects that live as long as the process. To look for garbage
    among them, again and again and once more before the process ends, took a fifth of the time of a solve.
    """
    gc.set_threshold(1_000_000)

    def spare_the_end() -> None:
        if "triton" not in sys.modules:  # it would complain of what is left
            gc.freeze()

    atexit.register(spare_the_end)


def run() -> None:
    """Run the command line; errors a user can cause end with one readable line and status 2 or 1.

    Ctrl-C is raised, whatever the command-line library made of it.
    """
    _spare_the_collector()
    warnings.showwarning = show_warning
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name that the terminal's encoding lacks is written out
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(standalone_mode=False)
        if status == 130:  # newer versions of the command-line library turn Ctrl-C into a status
            raise KeyboardInterrupt
    except GeoRouteNetError as error:
        complain(error)
        sys.exit(1)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:  # a full disk, for one
        complain(error)
        sys.exit(1)
    except MemoryError as error:
        complain(f"the memory is full{f': {error}' if str(error) else ''}")
        sys.exit(1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # a bug, not a usage error of the command-line library
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # a group by itself; its message is the help
            typer.echo(error.format_message())
            sys.exit(2)
        complain(" ".join(error.format_message().split("\n")) + _given(error))
        if type(error).__name__ == "MissingParameter":
            command = getattr(getattr(error, "ctx", None), "command_path", "georoutenet")
            say(f"try: {command} --help", err=True)
        if allowed := _allowed(error):
            say(f"allowed here: {allowed}", err=True)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
