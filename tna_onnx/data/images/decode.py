"""Read one image file as an upright image with 8 bits per channel. Only this file imports Pillow, and only when used.

Rules:

1. The first frame of an animation counts.
2. EXIF orientation is applied.
3. Alpha is dropped, not blended: transparent pixels keep the colour that the file stores for them.
4. 16-bit grey is read over its full range and keeps its upper 8 bits (65535 -> 255), as Pillow does for 16-bit colour.
   Floating-point and 32-bit grey are refused, because their range is not known.
5. Palette, CMYK and other colour spaces go to RGB by Pillow's `convert`, without colour profiles.
6. The number of pixels is checked before any is decoded: a file of a few kilobytes can claim billions.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.data.files import open_regular
from tna_onnx.data.limits import DEFAULT_LIMITS
from tna_onnx.data.parsing import parsing
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from typing import BinaryIO

    from PIL.Image import Image

    from tna_onnx.data.limits import Limits

__all__ = ["open_image_file", "read_image", "require_pillow"]

_GREY = ("1", "L", "LA")
_BYTES_PER_PIXEL = 16  # four channels of 32 bits
# Told by content, whatever the name says. Pillow reads more, PostScript among them, for which it starts a program.
_FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM")


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


def read_image(file: Path | BinaryIO, name: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Image:
    """Return the image in `file` in mode "L" (grey files) or "RGB" (all others), 8 bits per channel.

    Args:
        file: path, or the bytes of a file.
        name: what messages call it; None is the path.
        limits: how many pixels it may have.

    Raises:
        DataError: the file cannot be read as an image, is too large, or has pixels without a known range; the message
            names it.
        UsageError: Pillow is missing.
    """
    require_pillow()
    from PIL import Image, ImageOps  # noqa: PLC0415  (optional: extra `images`)

    where = name or str(file)
    with parsing(where, "cannot be read as an image", "repair or remove it"), _opened(file, where, limits) as stream:
        with _image(stream, where, limits) as image:
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
    raise DataError(
        f"{where}: expected 8 or 16 bits per channel, found pixels of mode {image.mode!r}, whose range is not known; "
        "store it with 8 bits per channel"
    )


def open_image_file(path: Path, where: str, limits: Limits) -> BinaryIO:
    """Open the file of an image, for its bytes.

    Raises:
        OSError: it cannot be opened.
        DataError: it is no regular file, or has more bytes than any image of the allowed size.
    """
    stream = open_regular(path)
    size = os.fstat(stream.fileno()).st_size
    if size > _BYTES_PER_PIXEL * limits.image_pixels:
        stream.close()
        raise DataError(f"{where}: has {size:,} bytes, too many for an image; raise --data-limit image-pixels=NUMBER")
    return stream


def _opened(file: Path | BinaryIO, where: str, limits: Limits) -> BinaryIO:
    if isinstance(file, Path):
        return open_image_file(file, where, limits)
    return file


def _image(stream: BinaryIO, where: str, limits: Limits) -> Image:
    """Read the header of an image.

    Raises:
        DataError: it has too many pixels (rule 6).
    """
    from PIL import Image  # noqa: PLC0415  (optional: extra `images`)

    # Pillow has a limit of its own, for the whole process; it moves only where the user asks for more.
    if Image.MAX_IMAGE_PIXELS is not None and limits.image_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = int(limits.image_pixels)
    advice = f"more than {int(limits.image_pixels):,}; if it is meant, raise --data-limit image-pixels=NUMBER"
    try:
        image = Image.open(stream, formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{where}: has too many pixels ({error}), {advice}") from error
    if image.width * image.height > limits.image_pixels:
        raise DataError(f"{where}: has {image.width:,} x {image.height:,} pixels, {advice}")
    return image
