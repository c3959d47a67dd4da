"""The two widget models behind an Inspector, and the outlet that speaks through them.

    GridData   kernel -> browser only: the whole state as traits, changes as custom messages
    Control    the view; requests of the reader and their answers

anywidget and ipywidgets are imported here, so this module is imported when a widget is made.
"""

from __future__ import annotations

import anywidget
import ipywidgets
import traitlets

from kitlib.inspector.widgets.assets import module, style_sheet
from kitlib.inspector.widgets.desk import Message


class GridData(ipywidgets.Widget):
    """The state of the grid. Only the desk's lock holder sets a trait or sends; the browser never writes."""

    frame = traitlets.Dict().tag(sync=True)
    palette = traitlets.Dict().tag(sync=True)
    names = traitlets.Bytes().tag(sync=True)
    marks = traitlets.Bytes().tag(sync=True)
    cells = traitlets.Bytes().tag(sync=True)


class Control(anywidget.AnyWidget):
    """The view. No trait changes after the start: see CommOutlet.reply."""

    _esm = module()
    _css = style_sheet()
    data_id = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(420).tag(sync=True)


class CommOutlet:
    """The way to the browser over two comms."""

    def __init__(self, height: int) -> None:
        self.data = GridData()
        self.control = Control(data_id=self.data.model_id, height=height)
        self._any_thread()

    def whole(self, frame: Message, palette: Message, names: bytes, marks: bytes, cells: bytes) -> None:
        """All traits in one message; those that are equal to the last ones are left out by traitlets."""
        with self.data.hold_sync():
            self.data.set_trait("frame", frame)
            self.data.set_trait("palette", palette)
            self.data.set_trait("names", names)
            self.data.set_trait("marks", marks)
            self.data.set_trait("cells", cells)

    def push(self, content: Message, buffers: list[bytes]) -> None:
        """One custom message on the data comm."""
        self.data.send(content, buffers)

    def reply(self, content: Message) -> None:
        """One custom message on the control comm."""
        self.control.send(content)
        self._any_thread()

    def close(self) -> None:
        """Close both comms; the views go blank."""
        self.control.close()
        self.data.close()

    def _any_thread(self) -> None:
        """Let the browser choose where its requests are handled.

        ipykernel 7.4 hands the messages of a comm to the shell that sent last on it, and the main one is busy while a
        cell runs. JupyterLab opens a subshell for each widget; forgetting who sent last makes its choice count.
        Elsewhere this attribute does not exist, and a click waits for the end of the cell.
        """
        self.control.comm.__dict__.pop("_reply_subshell_id", None)
