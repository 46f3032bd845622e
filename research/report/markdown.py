"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int) -> list[str]:
    """A Markdown table whose first ``words`` columns are text and whose others are numbers."""
    line = "|" + "---|" * words + "---:|" * (len(heads) - words)
    return [f"| {' | '.join(heads)} |", line, *(f"| {' | '.join(row)} |" for row in rows), ""]
