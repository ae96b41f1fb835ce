"""The laws that `tna_onnx.data.source` states, over every source, and its helpers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tna_onnx.data import InputSpec, Source, open_source
from tna_onnx.data.source import shape_text, split_rows
from tna_onnx.errors import UsageError

from .samples import gather, spec, write_folder, write_npz

N = 7
KINDS = ["arrays", "wider arrays", "float images", "integer images"]


def _write(kind: str, folder: Path) -> tuple[Path, list[InputSpec]]:
    """Write N samples of two classes below `folder`; return what to open and the inputs that they fit."""
    rng = np.random.default_rng(1)
    labels = np.arange(N) % 2
    if kind == "arrays":
        inputs = [spec("x", (None, 3, 2)), spec("ids", (None,), np.int64)]
        arrays = {"x": rng.random((N, 3, 2), np.float32), "ids": rng.integers(0, 9, N), "labels": labels}
        return write_npz(folder / "calib.npz", arrays), inputs
    if kind == "wider arrays":  # in memory column by column, and of a smaller dtype than the model's
        values = np.asfortranarray(rng.random((N, 3, 4)).astype(np.float16))
        return write_npz(folder / "calib.npz", {"x": values, "labels": labels}), [spec("x", (1, 3, 4))]
    names = [f"{label}/{row}.png" for row, label in enumerate(labels)]
    dtype, shape = (np.float32, (1, 3, 5, 6)) if kind == "float images" else (np.uint8, (None, 5, 6, 3))
    return write_folder(folder / "calib", names), [spec("image", shape, dtype)]


@pytest.fixture(scope="module", params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, list[InputSpec]]:
    path, inputs = _write(request.param, tmp_path_factory.mktemp("source"))
    return open_source(path, inputs, n_classes=2), inputs


@settings(deadline=None, max_examples=25)
@given(size=st.integers(1, N + 2))
def test_law_1_any_batch_size_gives_the_same_samples(opened: tuple[Source, list[InputSpec]], size: int) -> None:
    source, _ = opened
    whole = gather(source, N)
    for name, joined in gather(source, size).items():
        np.testing.assert_array_equal(joined, whole[name], strict=True)
    lengths = [len(next(iter(batch.values()))) for batch in source.batches(size)]
    assert lengths == [min(size, N - start) for start in range(0, N, size)]


@settings(deadline=None, max_examples=25)
@given(size=st.integers(1, N), rows=st.lists(st.integers(-N, N - 1), min_size=1, max_size=2 * N))
def test_law_2_rows_are_taken_by_index(opened: tuple[Source, list[InputSpec]], size: int, rows: list[int]) -> None:
    source, _ = opened
    whole = gather(source, N)
    for name, joined in gather(source, size, np.array(rows)).items():
        np.testing.assert_array_equal(joined, whole[name][rows], strict=True)


def test_law_3_batches_are_fresh_and_in_the_inputs_dtype(opened: tuple[Source, list[InputSpec]]) -> None:
    source, inputs = opened
    before = gather(source, N)
    for batch in source.batches(3):
        assert list(batch) == [wanted.name for wanted in inputs]
        for wanted in inputs:
            array = batch[wanted.name]
            assert array.dtype == wanted.dtype
            assert array.flags.c_contiguous
            array[...] = 0
    for name, again in gather(source, N).items():
        np.testing.assert_array_equal(again, before[name], strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_law_4_digest_follows_every_byte_and_not_the_place(kind: str, tmp_path: Path) -> None:
    path, inputs = _write(kind, tmp_path)
    digest = open_source(path, inputs, 2).digest()
    assert len(bytes.fromhex(digest)) == 32

    moved = path.rename(tmp_path / f"elsewhere{path.suffix}")
    source = open_source(moved, inputs, 2)
    assert source.digest() == digest

    file = moved if moved.is_file() else sorted(moved.rglob("*.png"))[-1]
    content = bytearray(file.read_bytes())
    content[10] ^= 1  # in a .npz file the time of day of the first array, so that it can still be opened
    file.write_bytes(content)
    assert open_source(moved, inputs, 2).digest() != digest


def test_source_members(opened: tuple[Source, list[InputSpec]]) -> None:
    source, _ = opened
    assert len(source) == N
    assert source.labels.dtype == np.int64
    assert source.labels.shape == (N,)
    assert f"({N} " in source.describe()
    assert "2 classes)" in source.describe()
    assert "\n" not in source.describe()


def test_no_rows_give_no_batches(opened: tuple[Source, list[InputSpec]]) -> None:
    assert list(opened[0].batches(2, np.array([], np.int64))) == []


def test_wrong_arguments_fail_at_the_call_and_not_later(opened: tuple[Source, list[InputSpec]]) -> None:
    source, _ = opened
    with pytest.raises(UsageError, match="at least 1, got 0"):
        source.batches(0)
    with pytest.raises(IndexError):
        source.batches(2, np.array([0, N]))
    with pytest.raises(IndexError, match=r"\(1, 2\)"):
        source.batches(2, np.array([[0, 1]]))


def test_split_rows() -> None:
    assert [part.tolist() for part in split_rows(5, 2, None)] == [[0, 1], [2, 3], [4]]
    assert [part.tolist() for part in split_rows(5, 2, np.array([4, 0, -1]))] == [[4, 0], [4]]


def test_shape_text() -> None:
    assert shape_text((8, None)) == "(N, ?)"
    assert shape_text((None,)) == "(N)"
    assert shape_text(()) == "()"


HEAVY = "PIL", "onnx", "onnxruntime", "torch", "scipy"
REPORT = f"import sys; print(*[name for name in {HEAVY} if name in sys.modules])"


@pytest.mark.parametrize(("first", "imported"), [("import tna_onnx.data", ""), ("import tna_onnx.data, PIL", "PIL")])
def test_import_stays_light(first: str, imported: str) -> None:
    """The second case shows that the test can fail."""
    done = subprocess.run([sys.executable, "-c", f"{first}; {REPORT}"], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == imported
