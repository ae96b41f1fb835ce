"""Numbers and names in foreign files that no array, size or path can have are refused, in one line."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tna_onnx
from tests.conftest import Small
from tests.support import cli
from tna_onnx import files
from tna_onnx.data import InputSpec, Recipe, read_recipe
from tna_onnx.data.choices import Limits
from tna_onnx.data.foreign import foreign_json
from tna_onnx.data.sources.webdataset import expanded
from tna_onnx.errors import DataError, TnaError, UsageError

HUGE = 10**400
SPEC = InputSpec("x", (None, 3, 8, 8), np.dtype(np.float32))
HF = {"image_processor_type": "ViTImageProcessor", "size": 8, "resample": 2, "image_mean": [0.5], "image_std": [0.5]}
TIMM = {"input_size": [3, 8, 8], "crop_pct": 1.0}


def test_whole_numbers_beyond_64_bits_are_floats() -> None:
    text = f"[{2**64 - 1}, {-(2**63)}, {2**64}, {HUGE}, {-HUGE}, 1.5]"
    assert foreign_json(text) == [2**64 - 1, -(2**63), float(2**64), math.inf, -math.inf, 1.5]
    assert foreign_json("9" * 5000) == math.inf  # more digits than Python converts


@pytest.mark.parametrize(
    "config",
    [
        *({**HF, name: value} for name in ("image_mean", "image_std") for value in ([HUGE] * 3, [1e300] * 3)),
        *({**HF, "rescale_factor": value} for value in (HUGE, 1e-300)),
        {**HF, "size": HUGE},
        {**HF, "size": 10**9},
        {**HF, "resample": HUGE},
        *({**TIMM, "crop_pct": value, **mode} for value in (1e-300, 5e-324) for mode in ({}, {"crop_mode": "squash"})),
        {**TIMM, "input_size": [3, HUGE, HUGE]},
    ],
)
def test_recipes_with_such_numbers(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(config))
    with pytest.raises(TnaError) as refused:
        read_recipe(tmp_path / "a.json").resolve(SPEC)
    assert len(str(refused.value)) < 600


def test_recipes_from_python_with_such_numbers() -> None:
    for recipe in (Recipe(scale=HUGE), Recipe(mean=(HUGE,)), Recipe(std=(HUGE,)), Recipe(resize=HUGE)):
        with pytest.raises(UsageError):
            recipe.resolve(SPEC)


@pytest.mark.parametrize(("size", "recipe"), [((8, 8), {"crop_pct": 4e-4}), ((1, 400), {"resize": 900})])
def test_what_an_image_is_scaled_to_counts_as_what_it_has(size: tuple[int, int], recipe: dict[str, Any]) -> None:
    image = Image.new("RGB", size)
    resolved = Recipe(**recipe, crop=8).resolve(SPEC)
    with pytest.raises(DataError, match="--data-limit image-pixels"):
        resolved(image)
    within = Recipe(resize=16, crop=8).resolve(SPEC)
    assert within(Image.new("RGB", (4, 8)), Limits(image_pixels=512)).shape == (3, 8, 8)
    with pytest.raises(DataError, match="image-pixels"):
        within(Image.new("RGB", (4, 8)), Limits(image_pixels=511))


def test_a_data_set_without_values(small: Small, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for empty in ("x", "labels"):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, values in (("x", np.zeros((40, 8), np.float32)), ("labels", np.arange(40) % 5)):
                file.create_dataset(name, data=h5py.Empty(values.dtype) if name == empty else values)
        with pytest.raises(DataError, match=f"{empty!r}: holds no values"):
            tna_onnx.evaluate(small.model, tmp_path / "a.h5", device="cpu")


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        [LONG, "--data", "data.npz"],
        ["model.onnx", "--data", LONG],
        ["model.onnx", "--data", f"{LONG}.npz"],
        ["model.onnx", "--data", f"file://{LONG}"],
        ["model.onnx", "--data", LONG + "/{0..3}.tar"],
        *(["model.onnx", "--data", "data.npz", option, LONG] for option in ("--labels", "--classes", "--json")),
        ["model.onnx", "--data", "data.npz", "--preset", LONG],
        ["model.onnx", "--data", "data.npz", "--data-root", LONG],
    ],
)
def test_names_that_no_file_can_have(small: Small, words: list[str]) -> None:
    names = {"model.onnx": small.model, "data.npz": small.test}
    result = cli("evaluate", *(names.get(word, word) for word in words))
    assert (result.exit_code, "too long" in result.stderr) == (2, True), result.output


def test_such_names_in_python(small: Small, tmp_path: Path) -> None:
    for words in ({"data": LONG}, {"model": LONG}, {"labels": LONG}, {"json": LONG}, {"data": "a\0b"}):
        with pytest.raises(UsageError, match=r"too long|NUL|null"):
            tna_onnx.evaluate(**{"model": small.model, "data": small.test, "device": "cpu", **words})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="too long"):
        tna_onnx.calibrate(small.model, small.calib, output=tmp_path / f"{LONG}.onnx")


def test_a_range_of_a_hundred_million_files_is_refused_at_once() -> None:
    start = time.perf_counter()
    for pattern in ("{0..99999999}.tar", "{0..999}{0..999}", f"{{0..{HUGE}}}", f"{{0..{'9' * 5000}}}"):
        with pytest.raises(UsageError, match="more than 100,000 files"):
            expanded(pattern)
    assert len(expanded("{0..99}-{0..999}.tar")) == 100_000
    assert time.perf_counter() - start < 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_that_nobody_reads_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="nobody has opened"):
        files.write_file(pipe, b"text")
    read: list[bytes] = []
    monkeypatch.setattr(files, "_PATIENCE", 30.0)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    content = os.urandom(300_000)  # more than a pipe holds
    files.write_file(pipe, content)
    reader.join(30)
    assert read == [content]
