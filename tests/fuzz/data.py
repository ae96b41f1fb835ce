"""Every reader of data, class names, recipes and settings, the feature store: what may be raised is TnaError.

What is read must be usable: labels within the classes, values finite and of the model's dtype and shape. A family is a
sound file, how it is mutated, and what reads it.
"""

import contextlib
import json
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image

from tests.data.samples import encoded, open_source
from tests.fuzz.mutate import mutated_bytes, mutated_json, mutated_text
from tna_onnx.cli.command import group
from tna_onnx.cli.config import read_file
from tna_onnx.data.choices import Limits
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.images.recipe_files import read_recipe
from tna_onnx.data.labelfile import read_class_names
from tna_onnx.data.options import Request
from tna_onnx.data.source import InputSpec
from tna_onnx.data.sources.arrays import open_precomputed
from tna_onnx.errors import DataError, TnaError
from tna_onnx.extraction.store import find_stores, labels_digest, open_store, read_stored

N = 6
LABELS = np.arange(N) % 3
X = np.random.default_rng(0).random((N, 4), np.float32)
VECTOR = [InputSpec("x", (None, 4), np.dtype(np.float32))]
IMAGE = [InputSpec("image", (None, 3, 5, 6), np.dtype(np.float32))]
PNG = [encoded(k) for k in range(N)]


@dataclass(frozen=True)
class Family:
    """Attributes: `write` makes files in a folder, and returns what to mutate and what to read."""

    write: Callable[[Path], tuple[Path, Any]]
    mutate: Callable[[bytes, random.Random], bytes]
    read: Callable[[Any], object]


def samples(inputs: list[InputSpec], **options: Any) -> Callable[[Any], None]:
    def read(data: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = open_source(data, inputs, 3, **options)
            source.describe()
            source.digest()
            assert len(source.sample_digests()) == len(source) == len(source.labels), "lengths"
            assert source.labels.min() >= 0, "labels"
            assert source.labels.max() < 3, "labels"
            for batch in source.batches(4):
                values = batch[inputs[0].name]
                assert np.isfinite(values).all(), "values"
                assert (values.dtype, values.shape[1:]) == (inputs[0].dtype, inputs[0].shape[1:]), "form"

    return read


def npz(save: Any) -> Callable[[Path], tuple[Path, Any]]:
    def write(folder: Path) -> tuple[Path, Any]:
        path = folder / "a.npz"
        save(path, x=X, labels=LABELS)
        return path, path

    return write


def npy(folder: Path) -> tuple[Path, Any]:
    np.save(folder / "labels.npy", LABELS)
    return folder / "labels.npy", folder / "labels.npy"


def text(name: str, content: str, beside: bool = True) -> Callable[[Path], tuple[Path, Any]]:
    def write(folder: Path) -> tuple[Path, Any]:
        for k, image in enumerate(PNG if beside else ()):
            (folder / f"{k}.png").write_bytes(image)
        (folder / name).write_text(content)
        return folder / name, folder / name

    return write


def images(folder: Path) -> tuple[Path, Any]:
    for k, kind in enumerate(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"]):
        path = folder / str(k % 3) / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(k, kind))
    return random.choice(sorted(folder.glob("*/*.png"))), folder


def table(kind: str) -> Callable[[Path], tuple[Path, Any]]:
    def write(folder: Path) -> tuple[Path, Any]:
        import pyarrow as pa
        import pyarrow.feather
        import pyarrow.parquet

        made = pa.table(
            {"x": X.tolist(), "label": LABELS}, schema=pa.schema({"x": pa.list_(pa.float32()), "label": "int64"})
        )
        path = folder / f"a.{kind}"
        if kind == "parquet":
            pyarrow.parquet.write_table(made, path)
        else:
            pyarrow.feather.write_feather(made, path, compression="uncompressed")
        return path, path

    return write


def precomputed(folder: Path) -> tuple[Path, Any]:
    np.savez(folder / "a.npz", features=X, labels=LABELS)
    return folder / "a.npz", folder / "a.npz"


def read_precomputed(data: Path) -> None:
    found = open_precomputed(data, Request(inputs=VECTOR, n_classes=3))
    assert found is None or np.isfinite(next(iter(found.source.batches(N)))[found.kind]).all()


def store(folder: Path) -> tuple[Path, Any]:
    key = {"labels_sha256": labels_digest(LABELS)}
    with open_store(folder, key, LABELS, 2) as opened:
        opened.array((4,), X.dtype)[:] = X
        opened.finish_up_to(N)
        place = opened.folder
    return random.choice(sorted(place.glob("*.*"))), folder


def read_store(folder: Path) -> None:
    find_stores(folder)
    np.testing.assert_array_equal(read_stored(folder).features, X)


def refill_store(folder: Path) -> None:
    key = {"labels_sha256": labels_digest(LABELS)}
    with open_store(folder, key, LABELS, 2) as opened:
        assert not opened.done or np.array_equal(opened.features[: opened.done], X[: opened.done]), "rows"


def read_settings(path: Path) -> None:
    ctx = click.Context(group.commands["calibrate"], info_name="calibrate", parent=click.Context(group))
    read_file(ctx, path)


CSV = "path,label\n" + "".join(f"{k}.png,{LABELS[k]}\n" for k in range(N))
LIST = "".join(f"{k}.png {LABELS[k]}\n" for k in range(N))
ROWS = [{"path": f"{k}.png", "label": int(LABELS[k])} for k in range(N)]
RECIPE = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 8, "width": 8}, "resample": 3,
    "do_rescale": True, "rescale_factor": 0.5, "do_normalize": True, "image_mean": [1, 2, 3], "image_std": [1, 2, 3],
}  # fmt: skip
TIMM = {"input_size": [3, 8, 8], "crop_pct": 0.8, "interpolation": "lanczos", "mean": [0.5], "std": [1]}
NAMES = {"id2label": {"0": "a", "1": "b"}}
SETTINGS = 'bins = 10\nobjective = "ece"\n[calibrate]\nseed = 3\nmean = [0.1, 0.2]\nlabels = "a.csv"\n'
SPEC = IMAGE[0]
PLAIN = Recipe(scale=1.0)

# Numbers that are fit for one place of a recipe and not for another, and some that are fit for none.
NUMBERS = [
    10**400, -(10**400), 10**18, 20_000, 65_537, 1e300, 1e-300, 5e-324, 4e-4, 0.99, 1, 3, 8, 224, [8, 8], [0.5] * 3,
]  # fmt: skip
SIDES = [(1, 1), (8, 8), (5, 300), (40, 40)]


def mutated_recipe(content: bytes, rng: random.Random) -> bytes:
    """Put numbers of any size into a recipe, or mutate it as any JSON."""
    if rng.random() < 0.3:
        return mutated_json(content, rng)
    config = json.loads(content)
    inner = config.get("pretrained_cfg", config)
    for key in rng.sample(sorted(inner), rng.randint(1, 3)):
        number = rng.choice(NUMBERS)
        inner[key] = [number] * len(inner[key]) if isinstance(inner[key], list) and rng.random() < 0.7 else number
    return json.dumps(config).encode()


def prepare(path: Path) -> None:
    """Follow a recipe: read it, fit it to inputs, prepare small and long images, within a million pixels."""
    recipe = read_recipe(path)
    limits = Limits(image_pixels=10**6)
    for shape in ((None, 3, 224, 224), (None, 3, 8, 8), (None, None, None, 3), (None, 3, None, None)):
        with contextlib.suppress(TnaError):
            resolved = recipe.resolve(InputSpec("image", shape, np.dtype(np.float32)))
            for side in SIDES:
                with contextlib.suppress(DataError):
                    values = resolved(Image.new("RGB", side), limits)
                    assert np.isfinite(values).all(), "values"
                    assert values.ndim == 3, "form"
    recipe.resolve(SPEC)


FAMILIES: dict[str, Family] = {
    "npz": Family(npz(np.savez), mutated_bytes, samples(VECTOR)),
    "npz, compressed": Family(npz(np.savez_compressed), mutated_bytes, samples(VECTOR)),
    "npy": Family(npy, mutated_bytes, lambda path: samples(VECTOR, labels=path)({"x": X})),
    "csv": Family(text("a.csv", CSV), mutated_text, samples(IMAGE, recipe=PLAIN)),
    "json": Family(text("a.json", json.dumps(ROWS)), mutated_json, samples(IMAGE, recipe=PLAIN)),
    "jsonl": Family(text("a.jsonl", "\n".join(map(json.dumps, ROWS))), mutated_text, samples(IMAGE, recipe=PLAIN)),
    "txt": Family(text("a.txt", LIST), mutated_text, samples(IMAGE, recipe=PLAIN)),
    "images": Family(images, mutated_bytes, samples(IMAGE, recipe=PLAIN)),
    "images, skipped": Family(images, mutated_bytes, samples(IMAGE, recipe=PLAIN, skip_bad=True)),
    "parquet": Family(table("parquet"), mutated_bytes, samples(VECTOR)),
    "arrow": Family(table("arrow"), mutated_bytes, samples(VECTOR)),
    "features": Family(precomputed, mutated_bytes, read_precomputed),
    "store": Family(store, mutated_bytes, read_store),
    "store, filled": Family(store, mutated_bytes, refill_store),
    "names": Family(text("a.json", json.dumps(NAMES), False), mutated_json, read_class_names),
    "recipe": Family(text("a.json", json.dumps(RECIPE), False), mutated_recipe, prepare),
    "timm": Family(text("a.json", json.dumps({"pretrained_cfg": TIMM}), False), mutated_recipe, prepare),
    "settings": Family(text("a.toml", SETTINGS, False), mutated_text, read_settings),
}
