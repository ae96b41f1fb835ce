"""Digests against their definitions, written out with hashlib."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest

from tna_onnx.data.digest import arrays_sha256, file_sha256, files_sha256, stream_sha256, tree_sha256
from tna_onnx.errors import DataError

LABELS = np.array([1, 0, 2])
AS_BYTES = b"".join(label.to_bytes(8, "big") for label in (1, 0, 2))


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


@pytest.mark.parametrize("length", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_streams_are_read_in_pieces(length: int) -> None:
    content = bytes(length - 1) + b"x" if length else b""
    assert stream_sha256(io.BytesIO(content)) == sha256(content)


def test_files_count_by_content_order_and_labels(tmp_path: Path) -> None:
    paths = [tmp_path / "b", tmp_path / "a"]
    for path in paths:
        path.write_text(path.name)
    expected = sha256((2).to_bytes(8, "big"), sha256(b"b"), sha256(b"a"), AS_BYTES)
    assert files_sha256(paths, LABELS) == expected.hex()


def test_trees_count_names_too(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"pixels")
    expected = sha256((9).to_bytes(8, "big"), b"cat/1.png", (3).to_bytes(8, "big"), sha256(b"pixels"))
    assert tree_sha256([("cat/1.png", 3, file_sha256(tmp_path / "cat/1.png"))]) == expected.hex()


def test_arrays_count_by_name_dtype_shape_and_values() -> None:
    values = np.arange(6, dtype="<f4").reshape(3, 2)
    header = b"('x', '<f4', (3, 2))"
    expected = sha256(len(header).to_bytes(8, "big"), header, values.tobytes(), AS_BYTES).hex()
    assert arrays_sha256({"x": values}, LABELS) == expected
    assert arrays_sha256({"x": np.asfortranarray(values)}, LABELS) == expected, "the order in memory does not count"
    others = [{"y": values}, {"x": values.astype("<f8")}, {"x": values.reshape(3, 1, 2)}, {"x": values + 1}]
    assert len({expected, *(arrays_sha256(other, LABELS) for other in others)}) == 5


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: cannot be read"):
        files_sha256([tmp_path / "gone"], LABELS)
