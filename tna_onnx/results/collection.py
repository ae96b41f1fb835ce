"""The result of `features`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Collection"]


@dataclass(frozen=True)
class Collection:
    """A feature store that is complete.

    Attributes:
        model: what the features were computed with.
        model_sha256: digest of its file.
        data: what the samples are.
        head: label of the linear head's node; empty for a model without one, whose logits are kept.
        tensor: what was kept.
        shape: (N, ...) of it.
        dtype: NumPy's name of its dtype.
        folder: where the store lies: data for `calibrate --calib`.
        notes: what was found in an earlier, unfinished store.
        preprocessing: resolved recipe of the images, None for arrays.
        provider: ONNX Runtime's execution provider.
    """

    model: str
    model_sha256: str
    data: str
    head: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    folder: str
    notes: tuple[str, ...]
    preprocessing: dict[str, object] | None
    provider: str
