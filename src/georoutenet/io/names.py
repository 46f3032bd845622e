"""Names from files: as file names, where they choose no folder, and as text, where they give no commands."""

from __future__ import annotations

import hashlib
import unicodedata

LONGEST = 120
"""Bytes of a safe name. File systems allow 255, and an extension or a temporary name needs some of them."""

_FORBIDDEN = frozenset('/\\<>:"|?*')
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{k}" for port in ("com", "lpt") for k in "0123456789¹²³")]
)


def safe_name(name: str) -> str:
    """``name`` as one component of a path that every common file system can hold.

    Separators, characters that some file system forbids and characters that cannot be seen become ``_``.
    Dots and blanks at either end go, so the result is neither hidden nor a way to another folder. A name
    that Windows keeps for a device gets a ``_``. A long name is cut and ends in a hash of the whole, so that
    names which differ only further on stay different. An ordinary name is returned as it is.
    """
    text = unicodedata.normalize("NFC", name)
    text = "".join("_" if c in _FORBIDDEN or not c.isprintable() else c for c in text).strip(" .")
    if text.split(".")[0].rstrip(" ").casefold() in _DEVICES:
        text = f"_{text}"
    if len(text.encode()) > LONGEST:
        mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        kept = text.encode()[: LONGEST - len(mark) - 1].decode(errors="ignore").rstrip(" .")
        text = f"{kept}-{mark}"
    return text or "instance"


def visible(text: object) -> str:
    """One line of text in which every character that cannot be seen is written out, as in ``\\x1b``."""
    text = str(text)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
