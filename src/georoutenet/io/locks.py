"""Locks on files that end with the process, however it ends."""

from __future__ import annotations

import errno

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

UNSUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOLCK}


def lock(descriptor: int, *, wait: bool) -> bool | None:
    """Lock an open file for this process until it is closed, or until all that share it have ended.

    False: another holds it. None: this system, or the file system of that file, has no such locks.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return None
        raise
    return True
