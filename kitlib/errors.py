"""The root of every error that kitlib raises on purpose.

An error of this family is a sentence for the reader: it names the offender (key, field, value, file), what was
expected, and the config key or the call that mends it. The command line prints that sentence without a traceback;
anything else is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class KitError(Exception):
    """Base class: the message is written to be read by the person who can mend it."""


def add_remark(error: BaseException, text: str) -> None:
    """Let an error on its way say more: an error of ours in its message, any other as a note of its traceback.

    Before Python 3.11 a traceback shows no notes.
    """
    if isinstance(error, KitError) and error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{text}", *error.args[1:])
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), text]  # type: ignore[attr-defined]
