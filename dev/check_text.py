"""Check what no file of the repository may hold, and that its licence is stated the same everywhere.

Index addresses would tie the project to one host; absolute paths of a home or work folder work on one machine only;
a copyright line of somebody else needs its origin told.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Written in pieces, so that this file passes its own check.
FORBIDDEN = {
    "address of a package index": "|".join(
        ["py" + r"pi\.org", "python" + r"hosted\.", "npm" + r"js\.", "deb" + r"\.debian", r"download\.py" + "torch"]
    ),
    "path of one machine": r"(?<![\w.}/-])/(?:"
    + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me", "Us" + "ers"])
    + r")/\w",
    "copyright line of its own": r"(?i)(?:copy" + r"right (?:\(c\)|©|\d{4}))|SPDX-License-" + "Identifier",
    "conflict marker": r"^(?:<{7} |>{7} )",
}
PATTERNS = {name: re.compile(pattern, re.MULTILINE) for name, pattern in FORBIDDEN.items()}


def tracked_files() -> list[Path]:
    """Return the files that git tracks or would track."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [path for name in listing.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def text_faults(path: Path) -> list[str]:
    """Return a line for every forbidden text in a file; binary files have none."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return []
    where = path.relative_to(ROOT)
    return [
        f"{where}:{text.count(chr(10), 0, match.start()) + 1}: {name}: {match.group().strip()}"
        for name, pattern in PATTERNS.items()
        for match in pattern.finditer(text)
    ]


def licence_faults() -> list[str]:
    """Return what is wrong with the statement of the licence."""
    faults = []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    licence = (ROOT / "LICENSE").read_text()
    if project.get("license") != "Apache-2.0" or project.get("license-files") != ["LICENSE"]:
        faults.append("pyproject.toml: `license` must be Apache-2.0 and `license-files` must name LICENSE")
    if "Apache License" not in licence or "Version 2.0, January 2004" not in licence:
        faults.append("LICENSE: not the text of the Apache License 2.0")
    return faults


def main() -> int:
    """Print every fault; the exit status says whether there were any."""
    faults = licence_faults()
    names = [str(path.relative_to(ROOT)) for path in tracked_files()]
    if "uv.lock" in names:
        faults.append("uv.lock: embeds index addresses, so it is not committed")
    for path in tracked_files():
        faults += text_faults(path)
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
