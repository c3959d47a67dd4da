"""Compute the golden numbers again with verl 0.9.1, on the stored inputs or on fresh ones. Needs verl.

    python tests/golden/regenerate.py                            how far are verl's numbers from the stored ones?
    python tests/golden/regenerate.py --write                    and store them
    python tests/golden/regenerate.py --seed 7 --out DIR         the same cases on other inputs, into another folder
    KITLIB_GOLDEN=DIR pytest tests/algos tests/workers tests/trainer/test_metrics.py    kitlib against them

Fresh inputs keep what a case is about: shapes, lengths, group sizes, padding rows. `calls.py` has the calls of verl.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RELATIVE_TO = {
    **dict.fromkeys(("log_prob", "ref_log_prob", "rollout_log_probs"), "old_log_probs"),
    "vpreds": "values",
}
TIED = ("token_level_rewards", "gdpo_format", "gdpo_accuracy", "reward_baselines")  # equal values must stay possible
Arrays = dict[str, np.ndarray]


def read(folder: Path) -> tuple[dict[str, Any], Arrays]:
    """The cases and the arrays they name."""
    with np.load(folder / "verl_golden.npz", allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(gzip.decompress((folder / "verl_golden.json.gz").read_bytes())), arrays


def write(folder: Path, golden: dict[str, Any], arrays: Arrays) -> None:
    """The two files; the same content gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "verl_golden.npz", **arrays)
    with open(folder / "verl_golden.json.gz", "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(json.dumps(golden, separators=(",", ":"), default=lambda number: number.item()).encode())


# ------------------------------------------------------------------------------------------------------- fresh inputs


def fresh(arrays: Arrays, seed: int) -> Arrays:
    """Inputs of other values under the same names: rows in another order, floats drawn from those of their column,
    groups shuffled."""
    generator = np.random.default_rng(seed)
    arrays = _reordered(arrays, generator)
    drawn = dict(arrays)
    names = sorted((name for name in arrays if name.startswith("in/")), key=lambda name: _column(name) in RELATIVE_TO)
    for name in names:
        drawn[name] = _redrawn(name, arrays, drawn, generator)
    return drawn


def _reordered(arrays: Arrays, generator: np.random.Generator) -> Arrays:
    """All columns of a data set, `in/<data set>/<column>`, in one new order of rows."""
    columns = [name for name in arrays if name.startswith("in/") and name.count("/") == 2]
    folders = dict.fromkeys(name.rsplit("/", 1)[0] for name in columns)
    order = {folder: generator.permutation(len(arrays[f"{folder}/response_mask"])) for folder in folders}
    return {**arrays, **{name: arrays[name][order[name.rsplit("/", 1)[0]]] for name in columns}}


def _column(name: str) -> str:
    return name.rsplit("/", 1)[1]


def _redrawn(name: str, arrays: Arrays, drawn: Arrays, generator: np.random.Generator) -> np.ndarray:
    values, folder, column = arrays[name], name.rsplit("/", 1)[0], _column(name)
    base = RELATIVE_TO.get(column)
    if base is not None and f"{folder}/{base}" in arrays:
        gap = values - arrays[f"{folder}/{base}"]
        return (drawn[f"{folder}/{base}"] + _bootstrapped(gap, generator)).astype(values.dtype)
    if column == "uid":
        real = np.flatnonzero(arrays[f"{folder}/response_mask"].any(axis=1))
        shuffled = values.copy()
        shuffled[real] = values[generator.permutation(real)]
        return shuffled
    if column == "seq_len":
        return generator.permutation(values + generator.integers(0, 64, values.shape)).astype(values.dtype)
    if column == "response_mask" and "multiturn" in folder:
        dropped = values * (generator.random(values.shape) > 0.15)
        return np.where(dropped.any(axis=1, keepdims=True), dropped, values).astype(values.dtype)
    if not np.issubdtype(values.dtype, np.floating):
        return values
    scale = 1.0 if column in TIED else generator.uniform(0.8, 1.2, values.shape)
    fresh_values = _bootstrapped(values, generator) * scale
    return (fresh_values.clip(0, 1) if column == "sum_pi_squared" else fresh_values).astype(values.dtype)


def _bootstrapped(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Values of the same column in other places; zeros, which are padding, stay."""
    out, there = values.copy(), values != 0
    if there.any():
        out[there] = generator.choice(values[there], int(there.sum()))
    return out


# ---------------------------------------------------------------------------------------------------------------- run


def recomputed(golden: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays, int]:
    """Every case that verl still accepts, with its outputs, and how many it now refuses."""
    from calls import compute  # needs verl

    kept, results, refused = [], dict(arrays), 0
    for case in golden["cases"]:
        inputs = {name: arrays[path] for name, path in case["inputs"].items()}
        if case["name"].startswith("kl/"):  # its gradient is of a masked sum; the mask is that of the data set
            inputs["response_mask"] = arrays[f"{case['inputs']['logprob'].rsplit('/', 1)[0]}/response_mask"]
        try:
            outputs, changes = compute(case, inputs)
        except ValueError:  # verl refuses these inputs, such as a group of one for pass@k
            refused += 1
            continue
        kept.append({**case, **changes})
        results.update({case["outputs"][name]: np.asarray(value) for name, value in outputs.items()})
    return {**golden, "cases": kept}, results, refused


def difference(before: Arrays, after: Arrays) -> str:
    """The output that moved most, relative to its largest value."""
    moved = {
        name: float(np.abs(after[name].astype(np.float64) - value).max() / max(np.abs(value).max(), 1e-6))
        for name, value in before.items()
        if value.size and not name.startswith("in/") and np.issubdtype(value.dtype, np.number)
    }
    worst = max(moved, key=lambda name: np.nan_to_num(moved[name], nan=0.0))
    return f"largest relative difference of {len(moved)} outputs: {moved[worst]:.1e} ({worst})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="draw fresh inputs")
    parser.add_argument("--out", type=Path, help="folder for the set on fresh inputs")
    parser.add_argument("--write", action="store_true", help="store what verl gives on the stored inputs")
    args = parser.parse_args()
    if (args.seed is None) != (args.out is None):
        parser.error("--seed and --out belong together")
    golden, arrays = read(HERE)
    inputs = arrays if args.seed is None else fresh(arrays, args.seed)
    after, results, refused = recomputed(golden, inputs)
    print(f"{len(after['cases'])} cases, {refused} refused by verl")
    if args.seed is None:
        print(difference(arrays, results))
    if args.seed is not None or args.write:
        folder = args.out or HERE
        write(folder, after, results)
        if folder != HERE:
            shutil.copy(HERE / "README.md", folder)
        print(folder)


if __name__ == "__main__":
    main()
