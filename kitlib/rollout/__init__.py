"""Rollout: servers that turn prompts into tokens, the clients that spread requests over them, and the weight sync.

verl 0.9.1: workers/rollout/ and checkpoint_engine/. TransformersServer and LLMServerManager are loaded on first use, because they
import transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kitlib.rollout.protocol import LLMServer, RolloutError, ServerClosedError, StopReason, TokenOutput

if TYPE_CHECKING:
    from kitlib.rollout.transformers_server import TransformersServer

__all__ = [
    "LLMServer",
    "RolloutError",
    "ServerClosedError",
    "StopReason",
    "TokenOutput",
    "TransformersServer",
]


def __getattr__(name: str) -> Any:
    if name == "TransformersServer":
        from kitlib.rollout.transformers_server import TransformersServer

        return TransformersServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
