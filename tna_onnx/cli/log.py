"""The log of a run on standard error, for `--verbose`, also where no terminal shows progress bars.

`-v` prints one line a stage, `-vv` every candidate and every method as well.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from tna_onnx.cli.channels import complain

__all__ = ["show_log"]


@contextlib.contextmanager
def show_log(verbose: int = 1) -> Iterator[None]:
    """Print the records of the logger `tna_onnx`, from INFO on, or from DEBUG on, while the block runs."""
    logger = logging.getLogger("tna_onnx")
    level = logger.level
    handler = _StandardError()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    try:
        yield
    finally:
        # A program that calls the command line in its own process keeps its logging as it was.
        logger.setLevel(level)
        logger.removeHandler(handler)


class _StandardError(logging.Handler):
    """Looks standard error up for every record: progress bars replace it while they show."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        complain(self.format(record))
