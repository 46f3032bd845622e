"""Where files that can be made or fetched again are kept."""

from __future__ import annotations

import os
from pathlib import Path

from georoutenet.errors import InputError


def cache_folder() -> Path:
    """``$GEOROUTENET_CACHE``, else ``$XDG_CACHE_HOME/georoutenet``, else ``~/.cache/georoutenet``.

    The folder need not exist; whoever writes into it creates it. A user without a home, as services have
    them, has none: an ``InputError``.
    """
    own, shared = os.environ.get("GEOROUTENET_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            return Path(own).expanduser()
        # The XDG specification says that a relative path is to be ignored.
        root = Path(shared) if shared and os.path.isabs(shared) else Path.home() / ".cache"
    except RuntimeError:
        raise InputError("there is no home folder for a cache: set GEOROUTENET_CACHE to a folder") from None
    return root / "georoutenet"
