"""``python -m research.weights``: the weights of the 2x2 from the history."""

from __future__ import annotations

import argparse
from pathlib import Path

from georoutenet.errors import GeoRouteNetError
from research import weights


def main() -> None:
    parser = argparse.ArgumentParser(
        description=weights.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=weights.HERE, help="folder to write to")
    options = parser.parse_args()
    try:
        for path in weights.restore(options.to):
            print(path)
    except (GeoRouteNetError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
