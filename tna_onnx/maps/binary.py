"""What the maps for two classes share: the log-odds of the second class, and what they refuse."""

from __future__ import annotations

from typing import Any

import array_api_compat

from tna_onnx.errors import DataError
from tna_onnx.maps.base import Reduce
from tna_onnx.numerics.multinomial import shape_of

__all__ = ["check_two_classes", "log_odds_column", "not_increasing"]


def check_two_classes(name: str, reduce: Reduce) -> None:
    """Refuse logits of more classes.

    Raises:
        DataError: there are not two.
    """
    classes = shape_of(reduce).classes
    if classes != 2:
        raise DataError(
            f"{name}: this map is for two classes, and the logits have {classes}; "
            "use --map bias, svs or sms, which are for any number"
        )


def not_increasing(name: str) -> DataError:
    """Return the error for a probability that falls where the model's rises."""
    return DataError(
        f"{name}: the second class is not more frequent where the model says that it is more probable; check the "
        "labels, the class order and the preprocessing"
    )


def log_odds_column(logits: Any) -> Any:
    """Return d = s_1 - s_0, (N, 1), in float64."""
    xp = array_api_compat.array_namespace(logits)
    return xp.astype(logits[:, 1:] - logits[:, :1], xp.float64)
