"""Fresh inputs for the golden cases: other values, the same shapes, lengths and group sizes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.golden.regenerate import HERE, Arrays, difference, fresh, read, recomputed, write

DATASETS = ("single", "ragged_groups", "multiturn", "with_padding_rows")


@pytest.fixture(scope="module")
def stored() -> Arrays:
    return read(HERE)[1]


def test_fresh_inputs_keep_what_a_case_is_about(stored: Arrays) -> None:
    drawn = fresh(stored, 1)
    for name, values in stored.items():
        assert drawn[name].shape == values.shape and drawn[name].dtype == values.dtype, name
    for dataset in DATASETS:
        uids = [Counter(Counter(arrays[f"in/{dataset}/uid"].tolist()).values()) for arrays in (stored, drawn)]
        assert uids[0] == uids[1], "groups of the same sizes"
        masks = [arrays[f"in/{dataset}/response_mask"].any(axis=1).sum() for arrays in (stored, drawn)]
        assert masks[0] == masks[1], "as many rows without a token"
        gap = np.abs(drawn[f"in/{dataset}/log_prob"] - drawn[f"in/{dataset}/old_log_probs"]).max()
        assert 0 < gap < 2 * np.abs(stored[f"in/{dataset}/log_prob"] - stored[f"in/{dataset}/old_log_probs"]).max()
        assert not np.array_equal(drawn[f"in/{dataset}/advantages"], stored[f"in/{dataset}/advantages"])


def test_a_seed_gives_the_same_inputs_again(stored: Arrays) -> None:
    one, again, other = fresh(stored, 1), fresh(stored, 1), fresh(stored, 2)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


def test_a_written_set_reads_back(stored: Arrays, tmp_path: Path) -> None:
    golden, _ = read(HERE)
    write(tmp_path, golden, stored)
    again, arrays = read(tmp_path)
    assert again == golden and arrays.keys() == stored.keys()


def test_verl_gives_the_stored_numbers(stored: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verl", reason="verl is not installed")
    monkeypatch.syspath_prepend(str(HERE))
    golden, _ = read(HERE)
    after, results, refused = recomputed(golden, stored)
    assert (len(after["cases"]), refused) == (len(golden["cases"]), 0)
    assert float(difference(stored, results).split(": ")[1].split()[0]) < 1e-5
