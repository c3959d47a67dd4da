"""The errors of this room."""

from __future__ import annotations

from kitlib.errors import KitError


class ConfigError(KitError, ValueError):
    """A setting that is unknown, has the wrong type or contradicts another; the message names it and the way out."""


class UnknownKeyError(ConfigError, AttributeError):
    """A name that is no setting of kitlib. (An AttributeError too, so that `hasattr(config, name)` works.)"""
