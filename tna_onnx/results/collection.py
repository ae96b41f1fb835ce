"""The result of `features`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Collection"]


@dataclass(frozen=True)
class Collection:
    """What `features` kept: a feature store that is complete.

    Attributes:
        model: path of the model that the features were computed with.
        model_sha256: SHA-256 of its file.
        data: what the samples are, in one line.
        head: node of the linear head; empty for a model without one, whose logits are kept.
        tensor: tensor that was kept.
        shape: its shape, (N, ...).
        dtype: NumPy's name of its dtype.
        folder: where the store lies: data for `calibrate --calib`.
        notes: what the user should know, in sentences: what an earlier, unfinished store held.
        preprocessing: what was done to the images; None where values are used as they are.
        provider: execution provider of ONNX Runtime that was obtained.
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
