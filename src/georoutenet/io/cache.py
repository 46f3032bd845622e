"""Where files that can be made or fetched again are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$GEOROUTENET_CACHE``, else ``$XDG_CACHE_HOME/georoutenet``, else ``~/.cache/georoutenet``.

    The folder need not exist; whoever writes into it creates it.
    """
    own = os.environ.get("GEOROUTENET_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says that a relative path is to be ignored.
    root = Path(shared) if shared and os.path.isabs(shared) else Path.home() / ".cache"
    return root / "georoutenet"
