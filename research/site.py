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
LINK = re.compile(r"\]\(\.\./([^)#]+)")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    names = {*OUTSIDE}
    for page in (ROOT / "docs").glob("*.md"):
        names |= {name for name in LINK.findall(page.read_text(encoding="utf-8")) if (ROOT / name).is_file()}
    for name in sorted(names):
        files.append(File.generated(config, name, content=(ROOT / name).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links out of docs/, and links of outside pages into it, as they are on the site."""
    if page.file.src_uri in OUTSIDE:
        up = "../" * page.file.src_uri.count("/")
        return re.sub(r"\]\((?:\.\./)?docs/", f"]({up}", markdown)
    return LINK.sub(r"](\1", markdown)
