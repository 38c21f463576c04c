"""How long `import art` takes in a fresh interpreter, beside `import openai` and an empty interpreter."""

from __future__ import annotations

import subprocess
import sys
import time

from common import alternate, keep, spread


def seconds(code: str) -> float:
    """Run code in a fresh interpreter and return how long that took."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def main() -> None:
    empty, art, first_use, openai = alternate(
        7,
        lambda: seconds("pass"),
        lambda: seconds("import art"),
        lambda: seconds("import art; art.Trajectory"),
        lambda: seconds("import openai"),
    )
    ratio = (spread(art)["median"] - spread(empty)["median"]) / (spread(openai)["median"] - spread(empty)["median"])
    keep(
        "import_art",
        {
            "empty_interpreter_s": spread(empty),
            "import_art_s": spread(art),
            "import_art_and_first_use_s": spread(first_use),
            "import_openai_s": spread(openai),
            "ratio_to_import_openai": ratio,
        },
        f"`import art` takes {ratio:.2f} times as long as `import openai` ({spread(art)['median']:.2f} s in all)",
    )


if __name__ == "__main__":
    main()
