r"""Text that came out of a file, made fit to be shown: names, labels, paths and whatever libraries say about them.

A terminal obeys control characters, and a reader does not see what a change of the writing direction does to a line.
Such characters are shown as escapes, as Python writes them: `\x1b`, `\u202e`. All others, of any script, stay.
"""

from __future__ import annotations

import re

__all__ = ["printable"]

_CONTROLS = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # changes of the writing direction
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"  # bytes of a path that is not UTF-8
)
_ALL = re.compile(f"[{_CONTROLS}]")
_BUT_LINES = re.compile(f"(?!\n)[{_CONTROLS}]")


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return a text without characters that act on a terminal or on the order of a line.

    Args:
        text: from anywhere.
        lines: line breaks stay; for a message that has some itself.

    >>> printable("he\x1b[31mad\n")
    'he\\x1b[31mad\\n'
    """
    return (_BUT_LINES if lines else _ALL).sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
