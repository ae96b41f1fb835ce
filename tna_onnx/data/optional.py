"""Libraries that some sources need and the package does not: imported when such a source is opened."""

from __future__ import annotations

import importlib
from typing import Any

from tna_onnx.errors import UsageError

__all__ = ["optional"]


def optional(module: str, extra: str, purpose: str) -> Any:
    """Return the module called `module`.

    Args:
        module: what to import.
        extra: the extra of this package that installs it.
        purpose: what messages say it is for, e.g. "reading Parquet files".

    Raises:
        UsageError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:  # also of a broken installation, so the message carries the cause
        raise UsageError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be imported ({error}); run pip install "
            f"'tna-onnx[{extra}]'"
        ) from error
