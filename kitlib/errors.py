"""The root of every error that kitlib raises on purpose.

An error of this family is a sentence for the reader: it names the offender (key, field, value, file), what was
expected, and the config key or the call that mends it. The command line prints that sentence without a traceback;
anything else is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class KitError(Exception):
    """Base class: the message is written to be read by the person who can mend it."""
