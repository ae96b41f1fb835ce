"""Arrays in `.npz` files and mappings: what is read, what is refused, and what messages say."""

import contextlib
import io
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tna_onnx
from tests.conftest import Demo
from tests.data.samples import gather, open_source, spec, write_npz
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Request
from tna_onnx.data.source import InputSpec
from tna_onnx.data.sources.arrays import open_arrays
from tna_onnx.errors import DataError, UsageError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LABELS = np.array([0, 1, 2])


def refusal(path: Path, *inputs: InputSpec, n_classes: int = 3) -> str:
    """Open, expecting a refusal, and return its message, which must name the file."""
    with pytest.raises(DataError) as caught:
        open_arrays(path, Request(inputs=inputs or (spec(),), n_classes=n_classes))
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_digest_is_of_the_file_that_was_read(tmp_path: Path) -> None:
    import hashlib

    path = write_npz(tmp_path / "calib.npz", {"x": X, "labels": LABELS})
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    source = open_arrays(path, Request(inputs=[spec()], n_classes=3))
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert source.digest() == expected
    np.testing.assert_array_equal(gather(source, 2)["x"], X)


# ---- files ----


@pytest.mark.parametrize("content", [b"", b"label,x\n0,1\n", b"PK\x03\x04 cut off"])
def test_not_a_zip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "calib.npz"
    path.write_bytes(content)
    assert "expected a .npz file" in refusal(path)


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["x", "labels"])
def test_objects_are_refused_and_never_unpickled(tmp_path: Path, name: str) -> None:
    trap = np.array([Trap(tmp_path / "sprung")], dtype=object)
    path = write_npz(tmp_path / "calib.npz", {"x": X, "labels": LABELS} | {name: trap})
    message = refusal(path)
    assert f"{name!r} cannot be read" in message
    assert "never unpickled" in message
    assert not (tmp_path / "sprung").exists()


def _npz_bytes() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=X, labels=LABELS)
    return buffer.getvalue()


GOOD = _npz_bytes()


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(GOOD)))
def test_broken_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], end: int
) -> None:
    content = bytearray(GOOD)
    for position, byte in changes:
        content[position] = byte
    path = tmp_path_factory.getbasetemp() / "fuzz.npz"
    path.write_bytes(content[:end] if end % 2 else content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile and NumPy may warn about what they then read
        with contextlib.suppress(DataError):
            gather(open_arrays(path, Request(inputs=[spec()], n_classes=3)), 2)


# ---- all formats ----


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"x": X, "classes": LABELS}, r"no array 'labels'; the file has 'x', 'classes'"),
    ({"x": X, "y": LABELS, "target": LABELS}, "no array 'labels'"),
    ({"images": X.astype(np.int64), "labels": LABELS}, "if 'images' is that input, store it in the model's shape"),
    ({"images": X[:, :2], "labels": LABELS}, "no array for the model's input 'x'"),
    ({"a": X, "b": X, "labels": LABELS}, "for the model's input 'x'; the model wants 'x', the file has"),
    ({"x": X[:2], "labels": LABELS}, "3 labels for 2 samples"),
    ({"x": X[:0], "labels": LABELS[:0]}, "no samples"),
]


@pytest.mark.parametrize(("arrays", "pattern"), REFUSED)
def test_refusals(tmp_path: Path, arrays: dict[str, Any], pattern: str) -> None:
    with pytest.raises(DataError, match=pattern) as caught:
        open_source(write_npz(tmp_path / "calib.npz", arrays), [spec()], 3)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["label", "y", "target", "targets"])
def test_labels_by_another_usual_name(tmp_path: Path, name: str) -> None:
    path = write_npz(tmp_path / "calib.npz", {"x": X, name: LABELS})
    source = open_arrays(path, Request(inputs=[spec()], n_classes=3))
    np.testing.assert_array_equal(source.labels, LABELS)
    assert source.notes == (f"calib.npz: the labels are the array {name!r}",)


def test_the_only_array_that_fits_is_the_only_input(tmp_path: Path) -> None:
    arrays = {"images": X, "site": LABELS, "labels": LABELS}
    for data in (write_npz(tmp_path / "calib.npz", arrays), arrays):
        source = open_source(data, [spec()], 3, group_column="site")
        np.testing.assert_array_equal(gather(source, 2)["x"], X)
        assert "the input 'x' is the array 'images'" in source.notes[0]  # type: ignore[attr-defined]
        with pytest.raises(DataError, match="no array for the model's input 'x'"):
            open_source(data, [spec()], 3)
    with pytest.raises(DataError, match="no array for the model's input 'x', 'z'"):
        open_source(data, [spec(), spec("z")], 3, group_column="site")


def test_arrays_of_inputs_are_no_labels(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "b.npz", {"x": X, "y": X})
    assert "no array 'labels'" in refusal(path, spec("x"), spec("y"))
    path = write_npz(tmp_path / "calib.npz", {"x": X, "labels": LABELS})
    assert "rename that input" in refusal(path, spec("x"), spec("labels", (None,), np.int64))


# ---- shapes and lengths ----


@pytest.mark.parametrize(
    ("shape", "wanted", "shown"),
    [((3, 5), (None, 4), "(N, 4)"), ((3,), (None, None), "(N, ?)"), ((), (None, 4), "(N, 4)")],
)
def test_shapes_that_do_not_fit(
    tmp_path: Path, shape: tuple[int, ...], wanted: tuple[int | None, ...], shown: str
) -> None:
    path = write_npz(tmp_path / "calib.npz", {"x": np.zeros(shape, np.float32), "labels": LABELS})
    assert f"'x': expected shape {shown}, found {shape}" in refusal(path, spec("x", wanted))


# ---- dtypes ----


@pytest.mark.parametrize(
    ("stored", "wanted"), [("float16", "float32"), ("int32", "int64"), ("uint8", "int64"), (">f4", "<f4")]
)
def test_lossless_casts_within_a_kind(tmp_path: Path, stored: str, wanted: str) -> None:
    values = (X % 2).astype(stored)
    path = write_npz(tmp_path / "calib.npz", {"x": values, "labels": LABELS})
    joined = gather(open_arrays(path, Request(inputs=[spec(dtype=wanted)], n_classes=3)), 2)["x"]
    np.testing.assert_array_equal(joined, values.astype(wanted), strict=True)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [("uint8", "float32"), ("float64", "float32"), ("int64", "int32"), ("bool", "float32"), ("<U3", "float32")],
)
def test_other_casts_are_refused(tmp_path: Path, stored: str, wanted: str) -> None:
    path = write_npz(tmp_path / "calib.npz", {"x": X.astype(stored), "labels": LABELS})
    message = refusal(path, spec(dtype=wanted))
    assert f"'x': expected dtype {wanted}, found {np.dtype(stored)}" in message
    assert f".astype('{wanted}')" in message


# ---- values ----


@pytest.mark.parametrize(("bad", "dtype"), [(np.nan, np.float32), (np.inf, np.float16), (-np.inf, np.float32)])
def test_values_that_are_not_finite(tmp_path: Path, bad: float, dtype: npt.DTypeLike) -> None:
    values = np.zeros((6, 4), dtype)
    values[[3, 4], 2] = bad
    path = write_npz(tmp_path / "calib.npz", {"x": values, "labels": np.arange(6) % 3})
    source = open_arrays(path, Request(inputs=[spec()], n_classes=3))
    batches = source.batches(2)
    next(batches)
    with pytest.raises(DataError, match=r"calib\.npz: array 'x' must be finite, but row 3 "):
        next(batches)
    with pytest.raises(DataError, match="row 4 "):
        list(source.batches(6, np.array([0, 4, 3])))


@pytest.mark.skipif(sys.platform == "win32", reason="files are not sparse by default")
def test_more_than_memory(tmp_path: Path) -> None:
    """A sparse file of 256 GiB that NumPy has mapped can be opened and read at its end."""
    shape = (2**19, 2**17)
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, shape)
    file[-1, -1] = 7
    del file
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = {"x": mapped, "labels": np.arange(len(mapped), dtype=np.int8) % 2}
    source = open_source(data, [spec("x", (None, shape[1]))], 2)
    assert gather(source, 2, np.array([0, -1]))["x"][1, -1] == 7


def test_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="preprocessing applies to images only"):
        open_source(write_npz(tmp_path / "calib.npz", {"x": X, "labels": LABELS}), [spec()], 3, Recipe(scale=1.0))


def test_inputs_of_different_lengths(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "calib.npz", {"x": X, "y": X[:2], "labels": LABELS})
    assert "'x' has 3, 'y' has 2" in refusal(path, spec("x"), spec("y"))


def test_an_input_without_a_shape_is_named() -> None:
    """A file may leave it out; a runtime says no more of it than of a single number."""
    samples = {"x": np.zeros((4, 3), np.float32), "labels": np.array([0, 1, 0, 1])}
    with pytest.raises(DataError, match="does not say which shape its input 'x' has"):
        open_source(samples, [InputSpec("x", (), np.dtype(np.float32))], 2)


def test_a_closed_archive(demo: Demo) -> None:
    with np.load(demo.calib) as archive:
        pass
    for samples in (archive, (archive, np.arange(3))):
        with pytest.raises(DataError, match="closed"):
            tna_onnx.Data(samples)
