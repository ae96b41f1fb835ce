"""How much memory small hostile files make the process take, each in a child process.

What a data file may stand for without regard to its size is set to 64 MiB here (`FLOOR`, else 1 GiB), so that files
which stand for more, and files which stand for just as much, are quick to make and to read.
"""

import io
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.graph.samples import Builder
from tests.graph.test_bounds import computed, ladder

FLOOR = 2**26
_ROWS = FLOOR // 16 - 1000  # of four float32: as much as is allowed


# --- models


def _linear(change: Callable[[Any], object]) -> onnx.ModelProto:
    """One layer, whose initializers are changed."""
    b = Builder()
    b.linear("y")
    proto = b.proto("y")
    change(proto.graph.initializer)
    return proto


def _add_many(tensors: Any) -> None:
    tensors.extend(numpy_helper.from_array(np.zeros(1, np.float32), f"i{k}") for k in range(10_000))


def _lie(tensors: Any) -> None:
    (weight,) = (tensor for tensor in tensors if tensor.name == "weight")
    weight.dims[0] = 2**40


def _copies() -> onnx.ModelProto:
    """A function that holds a megabyte, called 250 times."""
    b = Builder()
    value = numpy_helper.from_array(np.zeros(2**18, np.float32))
    nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Relu", ["a"], ["b"])]
    name = "features"
    for k in range(250):
        b.nodes.append(helper.make_node("F", [name], [f"t{k}"], domain="local"))
        name = f"t{k}"
    b.linear("y", data=name)
    proto = b.proto("y")
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.functions.append(helper.make_function("local", "F", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)]))
    return proto


_WIDE = np.int64([6, 5_500_000])  # just within the limit on elements
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "ConstantOfShape, allowed": lambda: computed("ConstantOfShape", _WIDE),
    "Tile": lambda: computed("Tile", np.ones((6, 1), np.float32), np.int64([1, 2**40])),
    "dims that lie": lambda: _linear(_lie),
    "functions that call others": lambda: ladder(16),
    "functions that hold much": _copies,
    "initializers": lambda: _linear(_add_many),
}


# --- data


def _npz(rows: int, folder: Path) -> Path:
    np.savez_compressed(folder / "a.npz", x=np.zeros((rows, 4), np.float32), labels=np.arange(rows) % 3)
    return folder / "a.npz"


def _npz_lie(folder: Path) -> Path:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 4)})
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    return folder / "a.npz"


def _parquet(rows: int, folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet

    x = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4 * rows, np.float32)), 4)
    pyarrow.parquet.write_table(pa.table({"x": x, "label": np.arange(rows) % 3}), folder / "a.parquet")
    return folder / "a.parquet"


def _image(side: int, folder: Path) -> Path:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    rows = zlib.compress(bytes((3 * side + 1) * side), 9) if side < 10_000 else zlib.compress(bytes(1000))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    for label in "012":
        (folder / "images" / label).mkdir(parents=True)
        (folder / "images" / label / "a.png").write_bytes(png)
    return folder / "images"


def _text(name: str, content: str, folder: Path) -> Path:
    (folder / name).write_text(content)
    return folder / name


DATA: dict[str, Callable[[Path], Path]] = {
    "npz": partial(_npz, 5 * _ROWS),
    "npz, allowed": partial(_npz, _ROWS // 2),
    "npz, lying": _npz_lie,
    "parquet": partial(_parquet, 5 * _ROWS),
    "image": partial(_image, 60_000),
    "csv": partial(_text, "a.csv", "path,label\n" + '"' + "x," * 10**6),
    "json": partial(_text, "a.json", "[" * 10**6),
}
IMAGES = ("image", "csv", "json")


# --- measuring


@dataclass(frozen=True)
class Growth:
    """Size of the file, growth of the largest resident memory (bytes), and how reading it ended."""

    size: int
    grown: int
    end: str


def growth(name: str) -> Growth:
    """Read one of the files in a child process."""
    with tempfile.TemporaryDirectory() as folder:
        if name in MODELS:
            path = Path(folder) / "model.onnx"
            path.write_bytes(MODELS[name]().SerializeToString())
        else:
            path = DATA[name](Path(folder))
        size = sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())
        words = [sys.executable, "-m", "tests.faults.memory", name, str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, end = done.stdout.split(" ", 1)
    return Growth(size, int(grown), end.strip())


def _peak() -> int:
    """Largest resident memory of this process so far; Linux starts a child with its own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def _read_model(path: Path) -> None:
    from tna_onnx.graph.load import load_model
    from tna_onnx.graph.scores import find_heads

    for head in find_heads(load_model(path))[0]:
        _ = (head.weight, head.bias)


def _read_data(path: Path, images: bool) -> None:
    from tests.data.samples import open_source
    from tna_onnx.data import choices
    from tna_onnx.data.images.preprocess import Recipe
    from tna_onnx.data.source import InputSpec

    choices._EXPANSION_FLOOR = FLOOR
    shape: tuple[Any, ...] = (None, 3, 5, 6) if images else (None, 4)
    recipe = Recipe(resize=(5, 6)) if images else None
    source = open_source(path, [InputSpec("x", shape, np.dtype(np.float32))], 3, recipe=recipe)
    source.digest()
    for _ in source.batches(64):
        pass


def _child(name: str, path: Path) -> None:
    from tna_onnx.errors import TnaError

    with tempfile.TemporaryDirectory() as folder:  # what is loaded for a sound file does not count
        if name in MODELS:
            (Path(folder) / "m.onnx").write_bytes(computed("Neg", np.ones((6, 3), np.float32)).SerializeToString())
            _read_model(Path(folder) / "m.onnx")
        else:
            _warm(Path(folder), name)
    before = _peak()
    try:
        _read_model(path) if name in MODELS else _read_data(path, name in IMAGES)
    except TnaError as error:
        end = f"refused: {error}"
    else:
        end = "read"
    print(_peak() - before, end.replace("\n", " "))  # noqa: T201


def _warm(folder: Path, name: str) -> None:
    small = {"npz": _npz, "parquet": _parquet}.get(name.partition(",")[0])
    path = _image(20, folder) if small is None else small(60, folder)
    _read_data(path, name in IMAGES)


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]))
