"""The log of a run on standard error, for `--verbose`: one line a stage, also where no terminal shows progress bars."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from tna_onnx.cli.channels import complain

__all__ = ["show_log"]


@contextlib.contextmanager
def show_log() -> Iterator[None]:
    """Print the records of the logger `tna_onnx`, from INFO on, while the block runs."""
    logger = logging.getLogger("tna_onnx")
    level = logger.level
    handler = _StandardError()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
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
