"""Pipes, devices, links and paths that lead out: refused at once, in every reader, through the command line too."""

import json
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import Small
from tests.data.samples import encoded, gather, open_source, spec, write_folder, write_npz
from tests.support import cli
from tna_onnx.data.choices import Limits
from tna_onnx.data.foreign import foreign_json, outside
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.images.recipe_files import read_recipe
from tna_onnx.data.labelfile import read_class_names
from tna_onnx.data.source import InputSpec
from tna_onnx.errors import DataError, TnaError, UsageError

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")

IMAGE = spec("image", (None, 3, 5, 6))
PLAIN = Recipe(scale=1.0)
X = np.random.default_rng(0).random((4, 4), np.float32)
LABELS = np.array([0, 1, 0, 1])


def link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def endless(path: Path) -> None:
    """A file of a terabyte that takes no room."""
    path.touch()
    os.truncate(path, 2**40)


MAKERS = [os.mkfifo, link_to_zero, endless]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", ["a.npz", "a.csv", "a.jsonl", "a.txt", "a.parquet"])
def test_no_reader_waits(tmp_path: Path, name: str, make: Callable[[Path], Any]) -> None:
    make(tmp_path / name)
    inputs = [IMAGE] if name.endswith(("csv", "json", "jsonl", "txt")) else [spec()]
    with pytest.raises(TnaError):
        open_source(tmp_path / name, inputs, 2)


@pytest.mark.parametrize("make", MAKERS)
def test_files_beside_the_data(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    for name in ("names.txt", "names.json", "recipe.json", "labels.csv", "labels.npy"):
        make(tmp_path / name)
    write_npz(tmp_path / "a.npz", {"x": X})
    for refused in (
        lambda: read_class_names(tmp_path / "names.txt"),
        lambda: read_class_names(tmp_path / "names.json"),
        lambda: read_recipe(tmp_path / "recipe.json"),
        lambda: open_source(tmp_path / "a.npz", [spec()], 2, labels=tmp_path / "labels.csv"),
        lambda: open_source(tmp_path / "a.npz", [spec()], 2, labels=tmp_path / "labels.npy"),
    ):
        with pytest.raises(TnaError):
            refused()


@pytest.mark.parametrize("make", MAKERS)
def test_an_image_that_is_none(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    root = write_folder(tmp_path / "calib", ["0/a.png", "1/b.png", "1/c.png"])
    make(root / "1" / "d.png")
    with pytest.raises(DataError):
        open_source(root, [IMAGE], 2, PLAIN).digest()
    if make is os.mkfifo:
        assert len(open_source(root, [IMAGE], 2, PLAIN, skip_bad=True)) == 3


def test_pipes_as_settings_and_data_end_the_command(small: Small, tmp_path: Path) -> None:
    for name in ("a.npz", "c.toml"):
        os.mkfifo(tmp_path / name)
    for words in (["--data", tmp_path / "a.npz"], ["--data", small.test, "--config", tmp_path / "c.toml"]):
        assert cli("evaluate", small.model, *words).exit_code in (2, 4)


# ---- places ----


def test_what_leads_outside(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    for name in ("in.png", "sub/in.png"):
        (data / name).touch()
    (tmp_path / "out.png").touch()
    (data / "link-in").symlink_to(data / "in.png")
    (data / "link-out").symlink_to(tmp_path / "out.png")
    (data / "folder").symlink_to(tmp_path, target_is_directory=True)
    inside = [
        "in.png",
        "sub/in.png",
        "sub/../in.png",
        "link-in",
        str(data / "in.png"),
        "folder/data/in.png",
        "gone.png",
    ]
    out = [
        "../out.png",
        str(tmp_path / "out.png"),
        "link-out",
        "folder/out.png",
        "..",
        "/etc/passwd",
        "a\0b",
        "sub/../..",
    ]
    assert outside(data, [*inside, *out]) == out
    assert outside(data, [*inside, *out], tmp_path) == ["/etc/passwd", "a\0b"]
    assert outside(tmp_path / "folder-that-is-not-there", ["a.png"]) == []


@pytest.mark.parametrize("path", ["../secret.png", "{absolute}", "link.png"])
@pytest.mark.parametrize("form", ["manifest", "labels"])
def test_names_that_lead_out_need_a_word(tmp_path: Path, path: str, form: str) -> None:
    data = write_folder(tmp_path / "data", ["0.png"])
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded(5))
    (data / "link.png").symlink_to(secret)
    name = path.format(absolute=secret)
    opened: Any = data / "list.csv"
    (data / "list.csv").write_text(f"path,label\n0.png,0\n{name},1\n")
    options: dict[str, Any] = {}
    if form == "labels":
        opened = data
        options["labels"] = data / "list.csv"
    with pytest.raises(DataError, match=r"lie outside .*--data-root"):
        gather(open_source(opened, [IMAGE], 2, PLAIN, **options), 2)
    source = open_source(opened, [IMAGE], 2, PLAIN, data_root=tmp_path, **options)
    assert gather(source, 2)["image"].shape == (2, 3, 5, 6)


# ---- sizes ----


def npy(shape: object, dtype: str = "'<f4'", body: bytes = X.tobytes()) -> bytes:
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


HEADERS = [
    npy("(99999999999, 4)"), npy("(-1, 4)"), npy("(True, 4)"), npy("(4, 4.0)"), npy("(2**62, 4)"), npy("'a'"),
    npy("(4, 4"),
    npy("(4, 4)", "'O'"), npy("(4, 4)", "[('a', 'O')]"), npy("(4, 4)", "'<f99'"), npy("(4, 4)", "'" + "9" * 5000 + "'"),
    npy("(" * 400), npy("(4, 4)")[:20], b"\x93NUMPY\x09\x00", b"", npy("(4, " + "9" * 4999 + ")"),
]  # fmt: skip


@pytest.mark.parametrize("content", HEADERS)
def test_headers_that_lie(tmp_path: Path, content: bytes) -> None:
    write_npz(tmp_path / "b.npz", {"x": X})
    (tmp_path / "y.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"y\.npy: cannot be read as an array"):
        open_source(tmp_path / "b.npz", [spec()], 2, labels=tmp_path / "y.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(DataError, match=r"array 'x' cannot be read"):
        open_source(tmp_path / "a.npz", [spec()], 2, labels=LABELS)


def test_archives_expand_as_far_as_they_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tna_onnx.data.choices._EXPANSION_FLOOR", 1000)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((10_000, 4), np.float32), labels=np.arange(10_000) % 2)
    with pytest.raises(DataError, match="raise --limit expansion=NUMBER"):
        open_source(tmp_path / "a.npz", [spec()], 2, limits=Limits(expansion=2))
    assert len(open_source(tmp_path / "a.npz", [spec()], 2, limits=Limits(expansion=5000))) == 10_000


def test_images_have_as_many_pixels_as_they_may(tmp_path: Path) -> None:
    for label in (0, 1):
        (tmp_path / "calib" / str(label)).mkdir(parents=True)
        Image.new("1", (400, 300)).save(tmp_path / f"calib/{label}/a.png")
    recipe = Recipe(scale=1.0, resize=(5, 6))
    source = open_source(tmp_path / "calib", [IMAGE], 2, recipe, limits=Limits(image_pixels=100_000))
    with pytest.raises(DataError, match=r"has 400 x 300 pixels, .*--limit image-pixels"):
        gather(source, 2)
    assert gather(open_source(tmp_path / "calib", [IMAGE], 2, recipe), 2)["image"].shape == (2, 3, 5, 6)


def test_no_image_starts_a_program(tmp_path: Path) -> None:
    """PostScript under the name of an image: Pillow would hand it to Ghostscript."""
    root = write_folder(tmp_path / "calib", ["0/a.png", "1/b.png"])
    (root / "1/b.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 5\n%%EndComments\nshowpage\n")
    with pytest.raises(DataError, match="cannot be read as an image"):
        gather(open_source(root, [IMAGE], 2, PLAIN), 2)


# ---- values ----


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "9" * 5000, '{"0": ' * 5000, '{"' + "9" * 5000 + '": "cat"}', "[1e999, NaN]"]
)
def test_json_that_is_hard(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    for refused in (
        lambda: read_class_names(tmp_path / "a.json"),
        lambda: read_recipe(tmp_path / "a.json"),
        lambda: open_source(tmp_path / "a.json", [IMAGE], 2, PLAIN),
        lambda: open_source(write_npz(tmp_path / "a.npz", {"x": X}), [spec()], 2, labels=tmp_path / "a.json"),
    ):
        with pytest.raises(DataError):
            refused()


@pytest.mark.parametrize("text", ["x = " + "[" * 100_000, "bins = " + "9" * 5000, "a = 1\0", "[[calibrate]]", "\xff"])
def test_settings_that_are_hard(small: Small, tmp_path: Path, text: str) -> None:
    (tmp_path / "c.toml").write_bytes(text.encode("latin-1"))
    done = cli("evaluate", small.model, "--data", small.test, "--config", tmp_path / "c.toml")
    assert (done.exit_code, done.output.startswith(f"Error: {tmp_path}")) == (2, True), done.output[:500]


def test_limits_are_checked() -> None:
    for values in ({"image_pixels": -1}, {"expansion": float("nan")}, {"overlap": 101}, {"text_bytes": "1"}):
        with pytest.raises(UsageError, match="data limit"):
            Limits(**values)  # type: ignore[arg-type]
    assert json.loads(json.dumps(Limits().expanded_bytes(2**30))) == 100 * 2**30


# --- Numbers and names in foreign files that no array, size or path can have are refused, in one line


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
    with pytest.raises(DataError, match="--limit image-pixels"):
        resolved(image)
    within = Recipe(resize=16, crop=8).resolve(SPEC)
    assert within(Image.new("RGB", (4, 8)), Limits(image_pixels=512)).shape == (3, 8, 8)
    with pytest.raises(DataError, match="image-pixels"):
        within(Image.new("RGB", (4, 8)), Limits(image_pixels=511))


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        [LONG, "--data", "data.npz"],
        ["model.onnx", "--data", LONG],
        ["model.onnx", "--data", f"file://{LONG}"],
        *(["model.onnx", "--data", "data.npz", option, LONG] for option in ("--labels", "--preset", "--json")),
    ],
)
def test_names_that_no_file_can_have(small: Small, words: list[str]) -> None:
    names = {"model.onnx": small.model, "data.npz": small.test}
    result = cli("evaluate", *(names.get(word, word) for word in words))
    assert (result.exit_code, "too long" in result.stderr) == (2, True), result.output
