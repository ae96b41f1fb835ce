"""Which texts are URLs: known without what copies their data."""

from __future__ import annotations

import re

__all__ = ["is_url", "local_path"]

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # two letters at least: C: is a drive


def is_url(text: str) -> bool:
    """Tell whether a path is a URL.

    >>> is_url("s3://bucket/calib.npz"), is_url("C:/calib.npz"), is_url("data/a:b.npz")
    (True, False, False)
    """
    return _SCHEME.match(text) is not None


def local_path(url: str) -> str:
    """Return the path that a `file://` URL stands for; anything else as it is.

    >>> local_path("file:///data/calib.npz"), local_path("s3://bucket/calib.npz")
    ('/data/calib.npz', 's3://bucket/calib.npz')
    """
    for scheme in ("file://", "local://"):
        if url.lower().startswith(scheme):
            return url[len(scheme) :]
    return url
