"""What runs samples that hold tensors from inside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tna_onnx.data import Batch
from tna_onnx.runtime import Session

__all__ = ["Runner"]


class Runner:
    """A session whose inputs go by the samples' names; without one, an output is what the samples hold already."""

    def __init__(self, session: Session | None, names: Mapping[str, str] | None = None) -> None:
        self._session = session
        self._names = names
        self._closed = False

    def close(self) -> None:
        """Give back what the session holds; it runs nothing any more."""
        self._session = None
        self._closed = True

    def run(self, outputs: list[str], batch: Batch) -> list[NDArray[Any]]:
        """Run one batch.

        Raises:
            DataError: ONNX Runtime refuses the data.
        """
        if self._closed:
            raise RuntimeError("a session that has been closed cannot run")
        if self._session is None:
            return [batch[name] for name in outputs]
        if self._names is None:
            return self._session.run(outputs, batch)
        return self._session.run(outputs, {self._names[name]: array for name, array in batch.items()})
