"""The laws that `tna_onnx.data.source` states, over every source, and its helpers."""

import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.samples import encoded, gather, open_source, spec, write_folder, write_npz
from tna_onnx.data.options import Request
from tna_onnx.data.source import NO_LABELS, InputSpec, Source, halves, require_samples, split_rows
from tna_onnx.data.sources.arrays import open_precomputed
from tna_onnx.errors import DataError, UsageError

N = 7
LABELS = np.arange(N) % 2
X = np.random.default_rng(1).random((N, 3, 2), np.float32)
IDS = np.random.default_rng(2).integers(0, 9, N)
PAIR = [spec("x", (None, 3, 2)), spec("ids", (None,), np.int64)]
IMAGE = spec("image", (None, 3, 5, 6))


@dataclass(frozen=True)
class Case:
    """What to open, and for data in files how law 4 changes a byte: the first one of `needle` in `file`."""

    data: Any
    inputs: list[InputSpec]
    file: Path | None = None
    needle: bytes = b""
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, moved: Path | None = None) -> Source:
        if "kind" in self.options:
            source = open_precomputed(moved or self.data, Request(inputs=[spec("x")], n_classes=2))
            assert source is not None
            return source.source
        return open_source(moved or self.data, self.inputs, 2, **self.options)


def arrays(folder: Path) -> Case:
    path = write_npz(folder / "calib.npz", {"x": X, "ids": IDS, "labels": LABELS})
    # The time of day of the first array, which no checksum covers.
    return Case(path, PAIR, path, path.read_bytes()[10:12])


def wider_arrays(folder: Path) -> Case:
    """In memory column by column, and of a smaller dtype than the model's."""
    values = np.asfortranarray(np.random.default_rng(1).random((N, 3, 4)).astype(np.float16))
    path = write_npz(folder / "calib.npz", {"x": values, "labels": LABELS})
    return Case(path, [spec("x", (1, 3, 4))], path, path.read_bytes()[10:12])


def images(folder: Path, wanted: InputSpec = IMAGE) -> Case:
    root = write_folder(folder / "calib", [f"{label}/{row}.png" for row, label in enumerate(LABELS)])
    return Case(root, [wanted], root / "1" / "5.png", b"IDAT")


def integer_images(folder: Path) -> Case:
    return images(folder, spec("image", (None, 5, 6, 3), np.uint8))


def flat_folder(folder: Path) -> Case:
    root = write_folder(folder / "calib", [f"{row}.png" for row in range(N)])
    (folder / "labels.csv").write_text("path,label\n" + "".join(f"{r}.png,{c}\n" for r, c in enumerate(LABELS)))
    return Case(root, [IMAGE], root / "5.png", b"IDAT", {"labels": folder / "labels.csv"})


def skipping(folder: Path) -> Case:
    case = images(folder)
    (case.data / "1" / "9.png").write_bytes(b"broken")
    return Case(case.data, case.inputs, case.file, case.needle, {"skip_bad": True})


def manifest(folder: Path) -> Case:
    root = write_folder(folder / "calib", [f"below/{row}.png" for row in range(N)])
    lines = [json.dumps({"path": f"below/{row}.png", "label": int(label)}) for row, label in enumerate(LABELS)]
    (root / "list.jsonl").write_text("\n".join(lines))
    return Case(root / "list.jsonl", [IMAGE], root / "below" / "5.png", b"IDAT")


def labels_apart(folder: Path) -> Case:
    np.save(folder / "y.npy", LABELS)
    path = write_npz(folder / "images.npz", {"x": X})
    return Case(path, PAIR[:1], path, path.read_bytes()[10:12], {"labels": folder / "y.npy"})


def parquet(folder: Path) -> Case:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"x": X.tolist(), "ids": IDS, "label": LABELS, "other": ["text"] * N})
    table = table.set_column(0, "x", table["x"].cast(pa.list_(pa.list_(pa.float32()))))
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "row_group_size": 3}
    pq.write_table(table, folder / "calib.parquet", **plain)
    return Case(folder / "calib.parquet", PAIR, folder / "calib.parquet", X[5].tobytes())


TABLE = [spec("X", (None, 6))]
FLAT = {f"c{place}": column for place, column in enumerate(X.reshape(N, 6).T)}


def text_table(folder: Path) -> Case:
    lines = [",".join([*FLAT, "target"])]
    lines += [
        ",".join([*map(repr, map(float, row)), str(label)]) for row, label in zip(X.reshape(N, 6), LABELS, strict=True)
    ]
    (folder / "calib.csv").write_text("\n".join(lines))
    return Case(folder / "calib.csv", TABLE, folder / "calib.csv", repr(float(X[5, 0, 0])).encode())


def parquet_of_numbers(folder: Path) -> Case:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "row_group_size": 3}
    pq.write_table(pa.table({**FLAT, "target": LABELS}), folder / "calib.parquet", **plain)
    return Case(folder / "calib.parquet", TABLE, folder / "calib.parquet", FLAT["c3"][3:6].tobytes())


def numbers_in_memory(folder: Path) -> Case:
    return Case((X.reshape(N, 6).astype(np.float64), LABELS), TABLE)


def parquet_images(folder: Path) -> Case:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    cells = [{"bytes": encoded(row), "path": f"{row}.png"} for row in range(N)]
    (folder / "calib").mkdir()
    for part, rows in enumerate((slice(0, 3), slice(3, N))):
        table = pa.table({"image": cells[rows], "label": LABELS[rows]})
        pq.write_table(table, folder / "calib" / f"{part}.parquet", compression="none", use_dictionary=False)
    return Case(folder / "calib", [IMAGE], folder / "calib" / "1.parquet", b"IDAT")


def arrow(folder: Path, compression: str | None = None) -> Case:
    pa = pytest.importorskip("pyarrow")
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(X)
    table = pa.table({"x": tensors, "ids": IDS, "labels": LABELS})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(folder / "calib.arrow", table.schema, options=options) as writer:
        for batch in table.to_batches(max_chunksize=3):
            writer.write_batch(batch)
    needle = X[5].tobytes() if compression is None else (folder / "calib.arrow").read_bytes()[-40:-39]
    return Case(folder / "calib.arrow", PAIR, folder / "calib.arrow", needle)


def precomputed(folder: Path) -> Case:
    path = write_npz(folder / "calib.npz", {"features": X.reshape(N, -1), "labels": LABELS})
    return Case(path, [spec("features", (None, 6))], path, path.read_bytes()[10:12], {"kind": "features"})


def mapping(folder: Path) -> Case:
    return Case({"x": X, "ids": IDS, "labels": LABELS}, PAIR)


def generator(folder: Path) -> Case:
    def batches() -> Any:
        for start in range(0, N, 3):
            part = slice(start, start + 3)
            yield {"x": X[part], "ids": IDS[part], "labels": LABELS[part]}

    return Case(batches(), PAIR)


def reader(folder: Path) -> Case:
    class Reader:
        """The protocol of ONNX Runtime's CalibrationDataReader."""

        def __init__(self) -> None:
            self.parts = iter([{"x": X[:4], "ids": IDS[:4]}, {"x": X[4:], "ids": IDS[4:]}])

        def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
            return next(self.parts, None)

    return Case(Reader(), PAIR, options={"labels": LABELS})


def url(folder: Path) -> Case:
    fsspec = pytest.importorskip("fsspec")
    case = images(folder)
    system = fsspec.filesystem("memory")
    system.put(f"{case.data}/", f"/{folder.name}/calib/", recursive=True)
    return Case(f"memory://{folder.name}/calib", case.inputs)


KINDS: list[Callable[[Path], Case]] = [
    arrays, wider_arrays, images, integer_images, flat_folder, skipping, manifest, labels_apart,
    text_table, parquet_of_numbers, numbers_in_memory, parquet, parquet_images,
    arrow, lambda folder: arrow(folder, "lz4"), precomputed, mapping,
    generator, reader, url,
]  # fmt: skip
NAMES = [kind.__name__.replace("<lambda>", "arrow_lz4") for kind in KINDS]


@pytest.fixture(scope="module", params=KINDS, ids=NAMES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, list[InputSpec]]:
    case = request.param(tmp_path_factory.mktemp("source"))
    return case.open(), case.inputs


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not precomputed])
def test_labels_that_nobody_asks_for_are_not_read(kind: Callable[[Path], Case], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    case, expected = kind(tmp_path / "a"), gather(kind(tmp_path / "b").open(), N)
    if isinstance(case.data, tuple):
        case = replace(case, data=case.data[0])
    words = {**case.options, "labels": NO_LABELS, "class_names": None}
    source = open_source(case.data, case.inputs, 1, **words)  # one class, which labels of two do not fit
    np.testing.assert_array_equal(source.labels, np.full(N, -1))
    assert re.search(rf"\({N} (images|samples), .*without labels", source.describe())
    for name, values in gather(source, 4).items():
        np.testing.assert_array_equal(values, expected[name])


def test_law_1_any_batch_size_gives_the_same_samples(opened: tuple[Source, list[InputSpec]]) -> None:
    source, _ = opened
    whole = gather(source, N)
    for size in range(1, N + 3):
        for name, joined in gather(source, size).items():
            np.testing.assert_array_equal(joined, whole[name], strict=True)
        lengths = [len(next(iter(batch.values()))) for batch in source.batches(size)]
        assert lengths == [min(size, N - start) for start in range(0, N, size)]


@settings(max_examples=10)
@given(size=st.integers(1, N), rows=st.lists(st.integers(-N, N - 1), min_size=1, max_size=2 * N))
def test_law_2_rows_are_taken_by_index(opened: tuple[Source, list[InputSpec]], size: int, rows: list[int]) -> None:
    source, _ = opened
    whole = gather(source, N)
    for name, joined in gather(source, size, np.array(rows)).items():
        np.testing.assert_array_equal(joined, whole[name][rows], strict=True)


def test_law_2_rows_of_a_part_are_its_own() -> None:
    for part in halves(open_source({"x": X, "ids": IDS, "labels": LABELS}, PAIR, 2), 0, ("one", "two")):
        np.testing.assert_array_equal(gather(part, 2)["ids"], IDS[part.rows])
        np.testing.assert_array_equal(gather(part, 2, np.array([-1, 0]))["ids"], IDS[part.rows[[-1, 0]]])


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


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_law_4_digest_follows_every_byte_and_not_the_place(kind: Callable[[Path], Case], tmp_path: Path) -> None:
    case = kind(tmp_path)
    digest = case.open().digest()
    assert len(bytes.fromhex(digest)) == 32
    if case.file is None:
        assert kind(tmp_path).open().digest() == digest
        return
    folder = tmp_path / "elsewhere"
    root = (
        case.data
        if case.data.is_dir() or not case.file.is_relative_to(case.data.parent / "below")
        else case.data.parent
    )
    folder.mkdir()
    moved = folder / root.name if root.is_dir() else folder / f"renamed{root.suffix}"
    root.rename(moved)
    file = moved if moved.is_file() else moved / case.file.relative_to(root)
    to_open = moved if root == case.data else moved / case.data.name
    assert case.open(to_open).digest() == digest

    content = bytearray(file.read_bytes())
    content[content.index(case.needle)] ^= 1
    file.write_bytes(content)
    assert case.open(to_open).digest() != digest


@pytest.mark.parametrize("change", ["x", "labels"])
def test_law_4_digest_follows_values_in_memory(change: str) -> None:
    values = {"x": X, "ids": IDS, "labels": LABELS}
    other = values | {change: 1 - values[change]}
    for wrap in (dict, lambda parts: [parts]):
        digests = [open_source(wrap(data), PAIR, 2).digest() for data in (values, other)]
        assert digests[0] != digests[1]


def test_source_members(opened: tuple[Source, list[InputSpec]]) -> None:
    source, _ = opened
    assert len(source) == N
    assert source.labels.dtype == np.int64
    assert source.labels.shape == (N,)
    assert f"({N} " in source.describe()
    assert "2 classes)" in source.describe()
    assert "\n" not in source.describe()


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
    assert [part.tolist() for part in split_rows(5, 2, np.array([True, False, True, True, False]))] == [[0, 2], [3]]
    assert split_rows(5, 2, np.array([], np.int64)) == []
    assert split_rows(5, 9, np.array([4, 1], np.uint8))[0].dtype == np.int64


@given(st.integers(1, 6), st.lists(st.integers(-8, 8), max_size=6))
def test_rows_are_those_of_an_index_array(n_samples: int, rows: list[int]) -> None:
    """The definition: NumPy's index of 0 to N - 1, its refusals included."""
    index = np.array(rows, np.int64)
    try:
        expected = np.arange(n_samples)[index].tolist()
    except IndexError:
        with pytest.raises(IndexError):
            split_rows(n_samples, 9, index)
    else:
        assert [row for part in split_rows(n_samples, 9, index) for row in part.tolist()] == expected


def test_a_few_rows_of_very_many_samples_cost_no_list_of_all() -> None:
    tracemalloc.start()
    split_rows(10**8, 64, np.arange(10**8 - 1024, 10**8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_require_samples() -> None:
    source = open_source({"x": np.zeros((N, 4), np.float32), "labels": LABELS}, [spec()], 2)
    require_samples(source, bins=7)
    require_samples(source, bins=5, folds=4)
    with pytest.raises(DataError, match="7 samples, fewer than the 8 bins of the ECE; give more samples"):
        require_samples(source, bins=8)
    with pytest.raises(DataError, match="5 samples outside a fold of 2, fewer than the 6 bins"):
        require_samples(source, bins=6, folds=4)
    with pytest.raises(UsageError, match="bins must be at least 1, got 0"):
        require_samples(source, bins=0)
    # what has no weight fills no bin, and no fold
    weighted: Any = replace(source, sample_info={"weight": np.array([1.0, 1, 1, 1, 0, 0, 0])})
    require_samples(weighted, bins=3, folds=4)
    with pytest.raises(DataError, match="3 samples outside a fold of 1, fewer than the 4 bins"):
        require_samples(weighted, bins=4, folds=4)


EVERYTHING = (
    "import sys, tna_onnx.data.formats; "
    "print({'PIL', 'onnx', 'onnxruntime', 'torch', 'scipy', 'pyarrow', 'fsspec', 'pandas'} & {*sys.modules})"
)


def test_import_stays_light() -> None:
    done = subprocess.run([sys.executable, "-c", EVERYTHING], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
