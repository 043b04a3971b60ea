"""Measures what ``import patcher`` adds to starting Python: medians over many fresh interpreters.

Run ``python tools/import_time.py [--runs N] [--json]``. Bare and patched starts alternate, so that a machine that
slows down or speeds up meanwhile does so for both. Times are wall-clock milliseconds of the whole process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

CASES = {"bare": "pass", "import patcher": "import patcher"}
BUDGET_MS = 50


def start(code: str) -> float:
    """Milliseconds that a fresh interpreter takes to run the code."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - begin) * 1e3


def measure(runs: int) -> dict[str, float]:
    """Median milliseconds of each case, and their difference."""
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for code in CASES.values():
        start(code)  # byte code is written and the files are in memory from here on
    for _ in range(runs):
        for name, code in CASES.items():
            times[name].append(start(code))
    medians = {name: statistics.median(values) for name, values in times.items()}
    medians["added"] = medians["import patcher"] - medians["bare"]
    return medians


def main() -> int:
    """Prints the medians; exit status 1 when the budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40, help="interpreters started per case")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    medians = measure(options.runs)
    if options.json:
        print(json.dumps({"milliseconds": medians, "budget": BUDGET_MS, "runs": options.runs}))
    else:
        for name, value in medians.items():
            print(f"{name:>15}  {value:6.1f} ms")
        print(f"{'budget':>15}  {BUDGET_MS:6.1f} ms, median of {options.runs} interpreters each")
    return int(medians["added"] > BUDGET_MS)


if __name__ == "__main__":
    raise SystemExit(main())
