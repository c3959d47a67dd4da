"""Kernels that talk over sockets in files.

By default jupyter_client looks for five free ports, lets go of them, and names them to a kernel that opens them a
second later. Whoever takes one in between, such as another kernel that starts at that moment, ends this one. A path in
a folder of one's own is taken by nobody.
"""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from uuid import uuid4

import jupyter_client
from jupyter_client.manager import AsyncKernelManager
from traitlets import default

PATIENCE = {"timeout": 600, "startup_timeout": 240, "iopub_timeout": 240}  # seconds, of a NotebookClient


@cache
def folder() -> str:
    """Of this process, under a short name: the path of a socket may have no more than 107 characters."""
    made = tempfile.TemporaryDirectory(prefix="kitlib-")
    atexit.register(made.cleanup)
    return made.name


class LocalKernelManager(AsyncKernelManager):
    """As its base class, without ports."""

    @default("transport")
    def _over_files(self) -> str:
        return "ipc"

    @default("ip")
    def _path(self) -> str:
        return f"{folder()}/{uuid4().hex[:12]}"


def use_for_every_notebook() -> None:
    """Make it what a NotebookClient takes if nobody names a class: nbmake's."""
    jupyter_client.AsyncKernelManager = LocalKernelManager  # type: ignore[misc]
