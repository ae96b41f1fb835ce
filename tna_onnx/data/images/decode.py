"""Image files as upright images with 8 bits per channel; `read_ahead` decodes groups of samples in threads, in order.

Only this file imports Pillow. Alpha is dropped, 16-bit grey keeps its upper 8 bits, and grey of unknown range is
refused. The number of pixels is checked before decoding.
"""

from __future__ import annotations

import io
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from tna_onnx.data.choices import DEFAULT_LIMITS, Limits
from tna_onnx.data.foreign import open_foreign, optional, parsing
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY = ("1", "L", "LA")
_BYTES_PER_PIXEL = 16  # four channels of 32 bits
# Told by content, whatever the name says. Pillow reads more, PostScript among them, for which it starts a program.
_FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM")


def load_pillow() -> Any:
    """Import the part of Pillow for images."""
    return optional("PIL.Image", "images", "reading images by Pillow")


def read_image(file: Path | BinaryIO, name: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Image:
    """Return the image in `file` in mode "L" (grey files) or "RGB" (all others), 8 bits per channel.

    `file`: path, or the bytes of a file. `name`: what messages call it; None is the path. `limits`: how many pixels it
    may have.
    """
    load_pillow()
    where = name or str(file)
    with (
        parsing(where, "cannot be read as an image", "repair or remove it, or leave out such images with --skip-bad"),
        open_image_file(file, where, limits) as stream,
        _image(stream, where, limits) as image,
    ):
        return _upright(image, image.format, where)


def _upright(image: Image, file_format: str | None, where: str) -> Image:
    """Return an image of Pillow upright and with 8 bits per channel: the same one where its mode stays."""
    from PIL import ImageOps  # noqa: PLC0415  (optional: extra `images`)

    ImageOps.exif_transpose(image, in_place=True)
    image.load()  # what is loaded outlives the file
    # Pillow would carry a transparent colour along, with a warning where a palette has several.
    image.info.pop("transparency", None)
    if image.mode.startswith("I;16") or (image.mode == "I" and file_format in ("PNG", "PPM")):
        grey: Image = load_pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))  # these hold 0..65535
        return grey
    if image.mode not in ("I", "F"):
        mode = "L" if image.mode in _GREY else "RGB"
        if image.mode == mode:
            return image  # as it is: `convert` copies even where the mode is the same
        return image.convert(mode)
    raise DataError(
        f"{where}: expected 8 or 16 bits per channel, found pixels of mode {image.mode!r}, whose range is not known; "
        "store it with 8 bits per channel"
    )


def image_of(value: Any, where: str, limits: Limits = DEFAULT_LIMITS) -> Image:
    """Return an image, as `read_image` does, from a value that a data engine stores in a column.

    `value`: the bytes of an encoded file; a mapping with them under `bytes`; uint8 pixels (H, W) or (H, W, 3); or an
    image of Pillow.
    """
    pillow = load_pillow()
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return read_image(io.BytesIO(value), where, limits)
    if isinstance(value, pillow.Image):
        return _upright(value.copy(), value.format, where)
    pixels = np.asarray(value)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype == np.uint8 and (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        image: Image = pillow.fromarray(np.ascontiguousarray(pixels))
        return image
    raise DataError(
        f"{where}: expected encoded images (bytes), or uint8 pixels of shape (H, W) or (H, W, 3); got "
        f"{type(value).__name__} of shape {pixels.shape}, {pixels.dtype}"
    )


def open_image_file(file: Path | BinaryIO, where: str, limits: Limits) -> BinaryIO:
    """Open the file of an image, for its bytes; a stream of them is given back.

    Raises OSError: it cannot be opened.
    """
    if not isinstance(file, Path):
        return file
    stream = open_foreign(file)
    size = os.fstat(stream.fileno()).st_size
    if size > _BYTES_PER_PIXEL * limits.image_pixels:
        stream.close()
        raise DataError(f"{where}: has {size:,} bytes, too many for an image; raise --limit image-pixels=NUMBER")
    return stream


def _image(stream: BinaryIO, where: str, limits: Limits) -> Image:
    """Read the header of an image."""
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415  (optional: extra `images`)

    # Pillow has a limit of its own, for the whole process; it moves only where the user asks for more.
    if Image.MAX_IMAGE_PIXELS is not None and limits.image_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = int(limits.image_pixels)
    advice = f"more than {int(limits.image_pixels):,}; if this is intended, raise --limit image-pixels=NUMBER"
    try:
        image = Image.open(stream, formats=_FORMATS)
    except UnidentifiedImageError:
        # Pillow's message shows the object that was read
        raise ValueError(f"not {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{where}: has too many pixels ({error}), {advice}") from error
    if image.width * image.height > limits.image_pixels:
        raise DataError(f"{where}: has {image.width:,} x {image.height:,} pixels, {advice}")
    return image


T = TypeVar("T")
P = TypeVar("P")
B = TypeVar("B")

WORKERS = min(16, os.cpu_count() or 1)  # decoding leaves Python's lock; past 16 threads what remains in it takes turns

_RUNS = 4  # of a group, for each thread: the last ones are done at about the same time


def read_ahead(
    groups: Iterable[Sequence[T]],
    load: Callable[[T], P],
    join: Callable[[Sequence[T], list[P]], B],
    workers: int = WORKERS,
) -> Generator[B, None, None]:
    """Yield join(group, [load(item) for item in group]) for each group, in order, computed by threads.

    An exception of `load` or `join` is raised when its group is reached, that of the first item first. When the
    generator is closed, items that no thread has begun are dropped, and the threads end.
    """
    pending: deque[Future[B]] = deque()
    closed = threading.Event()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="tna-onnx-read")
    try:
        for group in groups:
            size = max(1, len(group) // (_RUNS * workers))
            runs = (group[start : start + size] for start in range(0, len(group), size))
            loads = [pool.submit(_load_run, load, run, closed) for run in runs]
            # The pool starts tasks in the order of submission: when this one waits for the loads of its group,
            # other threads have begun all of them.
            pending.append(pool.submit(_gather, join, group, loads))
            # Two samples a thread keep all threads busy until the reader comes back; more would only take memory.
            ahead = len(pending) - 1
            if ahead and ahead * len(group) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # where the reader stopped, or an item failed, nobody will see the rest
        closed.set()
        pool.shutdown(cancel_futures=True)


def _load_run(load: Callable[[T], P], run: Sequence[T], closed: threading.Event) -> list[P]:
    loaded = []
    for item in run:
        if closed.is_set():  # nobody will see these
            break
        loaded.append(load(item))
    return loaded


def _gather(join: Callable[[Sequence[T], list[P]], B], group: Sequence[T], loads: list[Future[list[P]]]) -> B:
    return join(group, [loaded for future in loads for loaded in future.result()])
