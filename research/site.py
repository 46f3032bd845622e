"""The site's pages that lie outside docs/: hooks of MkDocs, see mkdocs.yml.

Pages in docs/ name files of the repository relative to themselves, as they are read in a checkout. Those
files become part of the site, and the links follow.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "research/log.md")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path in (*(ROOT / name for name in OUTSIDE), *sorted((ROOT / "examples").iterdir())):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links out of docs/, and links of outside pages into it, as they are on the site."""
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri in OUTSIDE:
        return re.sub(r"\]\((?:\.\./)?docs/", f"]({up}", markdown)
    return re.sub(r"\]\(\.\./", "](", markdown)
