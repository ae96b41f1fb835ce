"""How much of what may be foreign is taken in: bounds that honest data do not reach, and that a setting raises.

What a header claims is compared with what is there before memory is taken for it. Where a small file may honestly stand
for much, as compressed arrays do, the sizes must stay within a multiple of the file.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tna_onnx.errors import UsageError
from tna_onnx.numerics.checks import check_limits

__all__ = ["DEFAULT_LIMITS", "Limits"]

_EXPANSION_FLOOR = 2**30  # bytes: small archives of zeros, such as attention masks, honestly expand a thousand times


@dataclass(frozen=True)
class Limits:
    """Bounds on data, each of which `--data-limit NAME=NUMBER` sets.

    Attributes:
        image_pixels: width times height of one image before preprocessing. The default is that of Pillow.
        text_bytes: size of a file that is read as text: manifests, labels, class names, recipes.
        expansion: bytes that a file may stand for, in multiples of its size; 1 GiB is always allowed.
        download_bytes: size of all files that are copied from one URL.
        overlap: share of the held-out samples, in per cent, that may be calibration samples too.
    """

    image_pixels: int = 89_478_485
    text_bytes: int = 2**28
    expansion: int = 100
    download_bytes: int = 2**36
    overlap: float = 1.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: one is not a positive number, or `overlap` is not a share.
        """
        check_limits("data", dataclasses.asdict(self))
        if self.overlap > 100:
            raise UsageError(f"data limit overlap must lie in 0 to 100 per cent, got {self.overlap!r}")

    def expanded_bytes(self, size: int) -> int:
        """Return how many bytes a file of `size` bytes may stand for."""
        return max(_EXPANSION_FLOOR, int(self.expansion * size))


DEFAULT_LIMITS = Limits()
