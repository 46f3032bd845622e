"""The bounds of the required dependencies, tried at both ends, and an audit of them.

``python -m research.bounds lowest`` (or ``newest``) installs that version of every required package but torch
into a folder, puts it before the environment's own packages and runs the tests named after it (a short list
by default). torch stays what is there: other builds are too large to try. With ``audit WHEEL`` the pinned and
the lowest versions are compared with the vulnerabilities in a wheel of the package ``safety-db``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
TESTS = ("tests/io", "tests/problem", "tests/search", "tests/solver/test_solve.py", "tests/test_jit.py",
         "tests/test_plot.py", "tests/policy/test_weights.py", "tests/cli/test_solve_command.py")  # fmt: skip


def lowest() -> dict[str, str]:
    """The lower bounds of the required dependencies by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [Requirement(text) for text in project["dependencies"]]
    return {each.name: next(iter(each.specifier)).version for each in needed}


def pinned() -> dict[str, str]:
    """What ``constraints.txt`` installs."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==([\w.+]+)$", text, re.M))


def try_end(end: str, tests: list[str]) -> int:
    """Run tests with the lowest or the newest versions of all but torch; the status of pytest."""
    bounds = {name: version for name, version in lowest().items() if name != "torch"}
    exact = [f"{name}=={version}.*" if end == "lowest" else name for name, version in bounds.items()]
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", folder]
        subprocess.run([*install, *exact], check=True)
        own = [folder, str(ROOT / "src"), str(ROOT)]
        cache = {"PYTHONPATH": os.pathsep.join(own), "GEOROUTENET_CACHE": str(Path(folder) / "cache")}
        listed = ", ".join(sorted(path.stem for path in Path(folder).glob("*.dist-info")))
        print(f"{end}: {listed}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *(tests or TESTS)]
        return subprocess.run(command, env={**os.environ, **cache}, cwd=ROOT, check=False).returncode


def audit(wheel: Path) -> list[str]:
    """Known vulnerabilities of pinned versions and of lower bounds."""
    with zipfile.ZipFile(wheel) as archive:
        known = json.loads(archive.read("safety_db/insecure_full.json"))
    found = []
    for what, versions in (("pinned", pinned()), ("lowest", lowest())):
        for name, version in sorted(versions.items()):
            for entry in known.get(name, []):
                if any(SpecifierSet(text).contains(version) for text in entry["specs"]):
                    found.append(f"{what} {name} {version}: {entry.get('cve') or entry['id']}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["lowest", "newest", "audit"])
    parser.add_argument("given", nargs="*", help="tests, or the wheel of safety-db")
    arguments = parser.parse_args()
    if arguments.what != "audit":
        return try_end(arguments.what, arguments.given)
    found = audit(Path(arguments.given[0]))
    print("\n".join([*found, f"{len(found)} known vulnerabilities"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
