"""Make any string safe to show: names in a queue come from users, datasets and models.

A key, a tag or a decoded token may hold control characters (a terminal would obey them), right-to-left marks (a
reader would be misled) or lone surrogates (a file could not be written). Each becomes a visible escape such as
`\\x1b`; a backslash is doubled, so that two different names never look the same. Very long names keep head, tail and
a digest for the same reason.
"""

from __future__ import annotations

import hashlib
import unicodedata

MAX_NAME = 120  # characters; a name is what tells two things apart
MAX_VALUE = 60  # characters; a value (of a tag, of a config key) is only looked at

# Categories that print nothing of their own: control, format, surrogate, private use, unassigned, line, paragraph.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str) -> str:
    """`text` with every invisible character and backslash as a visible escape; one line, whatever it was."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if unicodedata.category(char) not in _INVISIBLE:
        return char
    return repr(char)[1:-1] if char in "\n\r\t" else _escape(ord(char))


def _escape(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def name_of(name: str, limit: int = MAX_NAME) -> str:
    """A name to show: whole, or head + digest + tail when it is longer than `limit`, so that no two long names become
    equal."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    tail = limit // 4
    return f"{name[: limit - tail - 14]}..#{digest}..{name[-tail:]}"


def value_of(value: object, limit: int = MAX_VALUE) -> str:
    """A value to show: `str` as it is, anything else as its repr, cut with the number of characters that are left
    out."""
    shown = value if isinstance(value, str) else repr(value)
    return shown if len(shown) <= limit else f"{shown[:limit]}.. (+{len(shown) - limit} characters)"
