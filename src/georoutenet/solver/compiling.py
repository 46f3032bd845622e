"""What is said while the search compiles: once on a machine, some eight seconds, which look like a hang."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from georoutenet.clock import compiled_parts, compiled_seconds, hearing_of_compiler
from georoutenet.stop import Progress

if TYPE_CHECKING:
    from georoutenet.solver.options import Report

PARTS = 76
"""Functions that a first tour has compiled, about: where the bar ends."""
WIDTH = 24
WORDS = "compiling, once on this machine"
MENTIONED = 1.0
"""Seconds of compiling from which on a line about them stays on the screen."""

_drawing = threading.Lock()


@contextmanager
def compiling(report: Report | None) -> Iterator[None]:
    """Tell ``report`` of what is compiled in here, as the stage ``compile``; its iterations are functions.

    Without a report a bar is drawn where a person looks on, in a terminal or a notebook, and nowhere else.
    """
    if report is None and not is_watched():
        yield
        return
    parts, seconds, failed = compiled_parts(), compiled_seconds(), list[BaseException]()
    shown = ""

    def tell() -> None:
        nonlocal shown
        at = Progress(compiled_seconds() - seconds, compiled_parts() - parts, 0, math.inf)
        try:
            if report is not None:
                report("compile", at)
            else:
                text = f"{WORDS} {bar(at.iterations)} {at.seconds:.0f} s"
                if text != shown:  # a notebook keeps all that was ever written
                    shown = text
                    _write(text)
        except BaseException as error:  # not into the compiler
            failed.append(error)

    alone = report is not None or _drawing.acquire(blocking=False)
    if not alone:  # another thread draws
        yield
        return
    try:
        with hearing_of_compiler(tell):
            yield
    finally:
        if report is None:
            took = compiled_seconds() - seconds
            if compiled_parts() > parts:
                _write(f"compiled in {took:.1f} s, once on this machine\n" if took > MENTIONED else "")
            _drawing.release()
    if failed:
        raise failed[0]


def bar(parts: int) -> str:
    """How many of ``PARTS`` are compiled, in letters."""
    filled = min(WIDTH, WIDTH * parts // PARTS)
    return f"[{'#' * filled}{'.' * (WIDTH - filled)}]"


def is_watched() -> bool:
    """Whether a person sees what is written to stderr: a terminal, or a notebook's kernel.

    Where rich draws a bar of its own it has put itself in the place of stderr, and lines would break its own.
    """
    if type(sys.stderr).__module__.startswith("rich."):
        return False
    return "ipykernel" in sys.modules or bool(getattr(sys.stderr, "isatty", lambda: False)())


def _write(text: str) -> None:
    """In place of the line that stands there."""
    line = f"georoutenet: {text}" if text else ""
    sys.stderr.write(f"\r{' ' * (len(WORDS) + WIDTH + 24)}\r{line}")
    sys.stderr.flush()
