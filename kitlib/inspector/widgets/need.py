"""The libraries of the extra `notebooks`, imported when a widget is made; and the errors of this room."""

from __future__ import annotations

import importlib
from types import ModuleType

from kitlib.errors import KitError


class NotebookExtraError(KitError, ImportError):
    """anywidget or ipywidgets is not installed."""


class EmptyRecordingError(KitError):
    """A recording without a snapshot, or something that is neither a queue nor a recording."""


def need(name: str) -> ModuleType:
    """The module `name` of the extra. Raises NotebookExtraError with the line that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotebookExtraError(
            f"the widgets need {name}, which is not installed ({error}): pip install kitlib[notebooks]"
        ) from error
