"""Read one image file as an upright image with 8 bits per channel. Only this file imports Pillow, and only when used.

Rules:

1. The first frame of an animation counts.
2. EXIF orientation is applied.
3. Alpha is dropped, not blended: transparent pixels keep the colour that the file stores for them.
4. 16-bit grey is read over its full range and keeps its upper 8 bits (65535 -> 255), as Pillow does for 16-bit colour.
   Floating-point and 32-bit grey are refused, because their range is not known.
5. Palette, CMYK and other colour spaces go to RGB by Pillow's `convert`, without colour profiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from PIL.Image import Image

__all__ = ["read_image", "require_pillow"]

_GREY = ("1", "L", "LA")


def require_pillow() -> None:
    """Check that Pillow can be imported.

    Raises:
        UsageError: it cannot.
    """
    try:
        import PIL.Image  # noqa: F401, PLC0415  (optional: extra `images`)
    except ImportError as error:
        raise UsageError(
            f"reading images needs Pillow, which cannot be imported ({error}); run pip install 'tna-onnx[images]'"
        ) from error


def read_image(file: Path | BinaryIO, name: str | None = None) -> Image:
    """Return the image in `file` in mode "L" (grey files) or "RGB" (all others), 8 bits per channel.

    Args:
        file: path, or the bytes of a file.
        name: what messages call it; None is the path.

    Raises:
        DataError: the file cannot be read as an image, or has pixels without a known range; the message names it.
        UsageError: Pillow is missing.
    """
    require_pillow()
    from PIL import Image, ImageOps  # noqa: PLC0415  (optional: extra `images`)

    where = name or str(file)
    try:
        with Image.open(file) as image:
            file_format = image.format
            ImageOps.exif_transpose(image, in_place=True)  # rule 2
            image.load()  # rule 1; what is loaded outlives the file
        # Rule 3. Pillow would carry a transparent colour along, with a warning where a palette has several.
        image.info.pop("transparency", None)
        if image.mode.startswith("I;16") or (image.mode == "I" and file_format in ("PNG", "PPM")):
            return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # rule 4: these hold 0..65535
        if image.mode not in ("I", "F"):
            mode = "L" if image.mode in _GREY else "RGB"  # rule 5
            if image.mode == mode:
                return image  # as it is: `convert` copies even where the mode is the same
            return image.convert(mode)
    except Exception as error:  # on broken bytes Pillow's parsers raise nearly anything
        raise DataError(f"{where}: cannot be read as an image ({error}); repair or remove it") from error
    raise DataError(
        f"{where}: expected 8 or 16 bits per channel, found pixels of mode {image.mode!r}, whose range is not known; "
        "store it with 8 bits per channel"
    )
