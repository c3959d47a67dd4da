"""Errors of the agent loop. What a model writes is never one of them: bad tool calls are answered in words."""

from __future__ import annotations

from kitlib.errors import KitError


class AgentLoopError(KitError):
    """A configuration, tool file, prompt or server that no session could work with. It stops the run."""


class BadOutputError(KitError):
    """A session returned something that is no trajectory. It fails the prompt of that session, not the run."""
