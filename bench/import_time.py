"""How long `import kitlib` takes beyond torch and tensordict, which every user of it imports anyway.

    python bench/import_time.py [REPEATS]

Each measurement is a fresh interpreter; the smallest of REPEATS (5) counts, because anything else is another
process's doing.
"""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import time
begin = time.perf_counter()
import torch, tensordict
middle = time.perf_counter()
import {module}
print(middle - begin, time.perf_counter() - middle)
"""


def measure(module: str, repeats: int) -> tuple[float, float]:
    """(seconds for torch and tensordict, seconds for `module` after them), the smallest of `repeats` each."""
    runs = []
    for _ in range(repeats):
        printed = subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(module=module)], capture_output=True, check=True
        )
        runs.append([float(word) for word in printed.stdout.split()])
    return min(run[0] for run in runs), min(run[1] for run in runs)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'module':<26} {'beyond torch and tensordict':>28}")
    for module in ("kitlib", "kitlib.config", "kitlib.inspector", "kitlib.trainer"):
        base, extra = measure(module, repeats)
        print(f"{module:<26} {extra:>26.2f} s")
    print(f"{'(torch and tensordict)':<26} {base:>26.2f} s")


if __name__ == "__main__":
    main()
