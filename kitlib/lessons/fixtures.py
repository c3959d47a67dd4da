"""A recorded batch of 4 prompts with 8 answers each, so that a lesson can begin in the middle of a step.

    fixture = load_fixture("scored")
    batch, tq = fixture.batch, fixture.tq        a handle, and a queue of its own with the rows
    fixture.stage                                the stage that is next: "compute_advantage"
    fixture.config, fixture.tokenizer            what the batch was made with

    name          the queue after       holds
    finished      the agent loop        32 rows and 4 prompt markers; nobody has a handle yet, batch is None
    sampled       sample                32 rows
    scored        old log-prob          and log_probs, entropy, old_log_probs
    advantages    advantage             and advantages, returns

The groups have 0, 1, 2 and 3 right answers; the one with 0 teaches nothing. Every call gives a new queue. The rows are
those of a real step of the shipped model, recorded by `python -m kitlib.lessons.make_fixtures`.

One npz file without pickle: `header.json` (see `make_fixtures`), and of every column of tensors its values end to end
and the lengths of its rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kitlib.config import Config, load_config
from kitlib.errors import KitError
from kitlib.paths import data_path
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, list_of_dict_to_tensordict

SCHEMA, VERSION = "kitlib.fixture", 1
FILE = "lessons/mult_tool.npz"
NEXT_STAGE = {
    "finished": "sample",
    "sampled": "balance_batch",
    "scored": "compute_advantage",
    "advantages": "update_actor",
}


class FixtureError(KitError):
    """A fixture that does not exist, or a file that holds none."""


@dataclass
class Fixture:
    """A queue in the middle of a step, with the handle that the next stage gets (None before `sample`)."""

    name: str
    stage: str
    tq: TransferQueue = field(repr=False)
    batch: KVBatchMeta | None = field(repr=False)
    overrides: list[str] = field(repr=False)
    global_steps: int = 1

    @cached_property
    def config(self) -> Config:
        """The settings of the step."""
        return load_config(self.overrides)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the model that wrote the answers."""
        from kitlib.models import load_tokenizer

        return load_tokenizer(self.config.actor_rollout_ref.model.path)


def load_fixture(name: str, path: str | Path | None = None, global_steps: int = 1) -> Fixture:
    """The batch as it was at one of the points above. Raises FixtureError.

    global_steps: the step that it is said to be of; all steps and weight versions in the tags move with it.
    """
    if name not in NEXT_STAGE:
        raise FixtureError(f"there is no fixture {name!r}: choose one of {', '.join(NEXT_STAGE)}")
    header, columns = read_fixture(data_path(FILE) if path is None else Path(path))
    moment = header["moments"][name]
    partition_id = header["partition_id"]
    later = global_steps - header["global_steps"]
    tags = {key: _moved(tag, later) for key, tag in header["tags"].items()}
    tq = TransferQueue()
    if moment["markers"]:
        markers = {key: _moved(tag, later) for key, tag in moment["markers"].items()}
        tq.kv_batch_put(keys=list(markers), partition_id=partition_id, tags=list(markers.values()))
    place = {key: number for number, key in enumerate(tags)}
    rows = [{name: columns[name][place[key]] for name in moment["fields"]} for key in moment["keys"]]
    own = [tags[key] for key in moment["keys"]]
    fields = list_of_dict_to_tensordict(rows)
    tq.kv_batch_put(keys=moment["keys"], partition_id=partition_id, fields=fields, tags=own)
    batch = None
    if not moment["markers"]:
        batch = KVBatchMeta(moment["keys"], own, partition_id, extra_info=moment["extra_info"])
    return Fixture(name, NEXT_STAGE[name], tq, batch, header["overrides"], global_steps)


def read_fixture(path: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(header, {field: value of every row in the order of header["tags"]}) of a file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(file["header.json"].tobytes())
            arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "header.json"}
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise FixtureError(f"{path} holds no fixture: {error}") from error
    if header.get("schema") != SCHEMA or header.get("version", 0) > VERSION:
        raise FixtureError(f"{path} has schema {header.get('schema')!r} version {header.get('version')!r}")
    return header, {**header["objects"], **_tensors(arrays)}


def write_fixture(path: Path, header: Mapping[str, Any], columns: Mapping[str, list[Any]]) -> None:
    """The reverse of `read_fixture`."""
    tensors = {name: rows for name, rows in columns.items() if isinstance(rows[0], torch.Tensor)}
    objects = {name: rows for name, rows in columns.items() if name not in tensors}
    text = json.dumps({"schema": SCHEMA, "version": VERSION, **header, "objects": objects}).encode()
    arrays = {f"{name}/values": torch.cat(rows).numpy() for name, rows in tensors.items()}
    arrays |= {f"{name}/lengths": np.array([len(row) for row in rows]) for name, rows in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        np.savez_compressed(file, **{"header.json": np.frombuffer(text, dtype=np.uint8)}, **arrays)  # type: ignore[arg-type]


def _moved(tag: Mapping[str, Any], num_steps: int) -> dict[str, Any]:
    """A tag so many steps later."""
    return {name: value + num_steps if name.endswith("global_steps") else value for name, value in tag.items()}


def _tensors(arrays: Mapping[str, torch.Tensor]) -> dict[str, list[Any]]:
    names = [name.removesuffix("/lengths") for name in arrays if name.endswith("/lengths")]
    return {
        name: [row.clone() for row in arrays[f"{name}/values"].split(arrays[f"{name}/lengths"].tolist())]
        for name in names
    }
