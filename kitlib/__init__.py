"""kitlib: verl's V1 trainer, small enough to read and real enough to train with, and the inspector of its queue.

The names below are loaded on first use, so that `import kitlib` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "load_config": "kitlib.config",
    "TaskRunner": "kitlib.trainer.task_runner",
    "TransferQueue": "kitlib.transfer_queue",
    "KVBatchMeta": "kitlib.transfer_queue",
    "take_snapshot": "kitlib.transfer_queue",
    "explain_get": "kitlib.transfer_queue",
    "strict_get": "kitlib.transfer_queue",
    "presence": "kitlib.inspector",
    "group_board": "kitlib.inspector",
    "needs": "kitlib.contract",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kitlib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
