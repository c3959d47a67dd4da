"""Views of a queue: what sits there, is it enough for the next stage, which groups teach something.

A view is a function of a snapshot (and a config); it comes back as a `View`, which a notebook shows as HTML, a
terminal as text and `print` as plain text, all from one model. Reading order: `model` (what a view says), `view`, the
two writers (`rich_writer`, `html_writer`), then one file a view.
"""

from kitlib.inspector.group_board_view import group_board
from kitlib.inspector.presence_view import presence
from kitlib.inspector.view import View, ViewTooLargeError

__all__ = ["View", "ViewTooLargeError", "group_board", "presence"]
