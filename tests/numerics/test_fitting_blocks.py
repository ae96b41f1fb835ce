"""Row blocks: the same statistic however a chunk is cut."""

import numpy as np
import pytest

from tna_onnx.numerics.ops import Blocked, blocks


@pytest.mark.parametrize("shape", [(1, 3), (131_072, 1), (131_073, 1), (1000, 1000), (3, 200_000), (0, 4)])
def test_blocks_cover_every_row_once_in_order(shape: tuple[int, int]) -> None:
    logits = np.zeros(shape, np.float32)
    rows = np.arange(shape[0])
    assert np.concatenate([rows[k] for k in blocks(logits)]).tolist() == rows.tolist()
    assert all(logits[k].size <= max(2**17, shape[1]) for k in blocks(logits))


def test_aligned_arrays_are_cut_alike() -> None:
    logits, labels = np.ones((1000, 1000)), np.arange(1000)
    seen = Blocked(lambda s, y, z: [(len(s), y.tolist(), z)])(logits, labels, None)
    assert len(seen) > 1
    assert [z for _, _, z in seen] == [None] * len(seen)
    assert [n for n, _, _ in seen] == [len(y) for _, y, _ in seen]
    assert [label for _, y, _ in seen for label in y] == labels.tolist()


def test_arrays_of_torch_are_left_whole() -> None:
    torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
    assert Blocked(lambda s: [len(s)])(torch.zeros(1000, 1000)) == [1000]
