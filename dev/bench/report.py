"""Write docs/benchmarks.md from the results that are kept: `python dev/bench/report.py`."""

from __future__ import annotations

import json
from typing import Any

from common import RESULTS, ROOT

HEAD = """# Benchmarks

Each result is a ratio within one run; absolute times on a CPU say more about the machine than the code. The numbers
behind each line, with device, versions and command, are in `dev/bench/results/`; this page is made from them by
`python dev/bench/report.py`.

| benchmark | result | on | command |
| --- | --- | --- | --- |
"""


def main() -> None:
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "summary" in record:
            cells = (record["benchmark"], record["summary"], record["device"], f"`{record['command']}`")
            rows.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    (ROOT / "docs" / "benchmarks.md").write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
