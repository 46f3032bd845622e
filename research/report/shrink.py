"""Smaller pictures: PNG files with a palette of 256 colors take a third of the space and look the same.

python -m research.report.shrink PICTURE.png ...
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

from georoutenet.io.atomic import atomic_write


def shrink(path: Path) -> None:
    """Give a PNG file a palette, unless it has one or would not get smaller."""
    with Image.open(path) as picture:
        if picture.mode == "P":
            return
        few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    data = io.BytesIO()
    few.save(data, "PNG", optimize=True)
    if len(data.getvalue()) < path.stat().st_size:
        with atomic_write(path, "wb") as file:
            file.write(data.getvalue())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        shrink(Path(name))
