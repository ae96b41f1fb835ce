"""WebDataset shards: members, keys, order and labels; broken archives; nothing is unpacked."""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import encoded, gather, noise, spec
from tna_onnx.data import Source, open_source
from tna_onnx.data.source import NO_LABELS
from tna_onnx.errors import DataError, UsageError

IMAGE = spec("image", (None, 3, 5, 6))
Members = Sequence[tuple[str, bytes]]


def write(path: Path, members: Members, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, options.pop("mode", "w"), **options) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def samples(first: int, last: int, folder: str = "") -> list[tuple[str, bytes]]:
    return [
        member
        for row in range(first, last)
        for member in ((f"{folder}{row:03}.png", encoded(row)), (f"{folder}{row:03}.cls", f"{row % 2}\n".encode()))
    ]


def opened(path: Path, n_classes: int = 2, **options: Any) -> Source:
    return open_source(path, [IMAGE], n_classes, **options)


def check(source: Source, seeds: Sequence[int]) -> None:
    expected = np.stack([noise(5, 6, seed=seed).transpose(2, 0, 1) for seed in seeds]) / 255
    np.testing.assert_allclose(gather(source, 2)["image"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("style", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_one_shard(tmp_path: Path, style: int) -> None:
    long = "a/" * 80
    source = opened(write(tmp_path / "calib.tar", samples(0, 5, long if style else ""), format=style))
    check(source, range(5))
    np.testing.assert_array_equal(source.labels, [0, 1, 0, 1, 0])
    assert source.describe() == "webdataset calib.tar (5 images, 2 classes)"


@pytest.mark.parametrize("how", ["folder", "range", "list"])
def test_many_shards(tmp_path: Path, how: str) -> None:
    for number in range(3):
        write(tmp_path / f"calib-{number:03}.tar", samples(2 * number, 2 * number + 2))
    path = {
        "folder": tmp_path,
        "range": tmp_path / "calib-{000..002}.tar",
        "list": tmp_path / "calib-{000,001,002}.tar",
    }[how]
    check(opened(path), range(6))


def test_missing_shards(tmp_path: Path) -> None:
    write(tmp_path / "calib-0.tar", samples(0, 2))
    with pytest.raises(UsageError, match=r"calib-\{0\.\.2\}\.tar: 2 of its 3 files are not there \(.*calib-1\.tar"):
        opened(tmp_path / "calib-{0..2}.tar")


def test_keys_and_kinds(tmp_path: Path) -> None:
    """The key ends at the first dot of the last part; dots in folders and further members do not matter."""
    members = [
        ("./v1.0/a.left.PNG", encoded(0)),
        ("./v1.0/a.json", json.dumps({"cls": 1, "other": 2}).encode()),
        ("./v1.0/a.txt", b"a caption"),
        ("v1.0/b.jpg.png", encoded(1)),
        ("v1.0/b.cls", b"0"),
        ("v1.0/b.json", b'{"label": 1}'),
        ("v1.0/.hidden.png", b""),
        ("README", b"text"),
        ("c.cls", b"1"),
        ("c.png", encoded(2)),
    ]
    source = opened(write(tmp_path / "calib.tar", members))
    check(source, [0, 1, 2])
    np.testing.assert_array_equal(source.labels, [1, 0, 1], err_msg=".cls goes before .json")


def test_members_of_a_sample_need_not_be_neighbours(tmp_path: Path) -> None:
    members = samples(0, 4)
    check(opened(write(tmp_path / "calib.tar", [*members[::2], *members[::-2]])), range(4))


@pytest.mark.parametrize(
    ("members", "pattern"),
    [
        ([("a.png", b""), ("b.png", b""), ("b.cls", b"1")], "sample 'a' has no member with a label"),
        ([("a.cls", b"1")], "sample 'a' has no member with an image"),
        ([("a.png", b""), ("a.json", b'{"caption": "x"}')], "sample 'a' has no member with a label"),
        ([("a.png", b""), ("a.jpg", b""), ("a.cls", b"1")], "sample 'a' has several images"),
        ([("a.png", b""), ("a.json", b"{")], r"a\.json: cannot be read"),
        ([("a.png", b""), ("a.cls", b"\xff")], r"a\.cls: cannot be read .* UTF-8"),
        ([("a.npy", b"")], "no samples in 1 tar files"),
        ([], "no samples in 1 tar files"),
        ([("a.png", b""), ("a.cls", b"cat"), ("b.png", b""), ("b.cls", b"cat")], "1 labels for a model with 2 classes"),
    ],
)
def test_shards_without_usable_samples(tmp_path: Path, members: Members, pattern: str) -> None:
    with pytest.raises(DataError, match=pattern) as caught:
        opened(write(tmp_path / "calib.tar", members))
    assert str(tmp_path / "calib.tar") in str(caught.value)


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
def test_compressed_archives(tmp_path: Path, mode: str) -> None:
    with pytest.raises(DataError, match=r"cannot be read as a tar file .* gunzip"):
        opened(write(tmp_path / "calib.tar", samples(0, 2), mode=mode))


def test_a_broken_header_is_not_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "calib.tar", samples(0, 4))
    content = bytearray(path.read_bytes())
    content[content.index(b"002.png") + 148] ^= 1  # its checksum
    path.write_bytes(content)
    with pytest.raises(DataError, match="broken header at byte"):
        opened(path)


def test_a_broken_image_is_named_or_skipped(tmp_path: Path) -> None:
    members = samples(0, 4)
    members[2] = ("001.png", encoded(1)[:60])
    path = write(tmp_path / "calib.tar", members)
    with pytest.raises(DataError, match=r"calib\.tar: sample '001': cannot be read as an image"):
        list(opened(path).batches(4))
    source = opened(path, skip_bad=True)
    check(source, [0, 2, 3])
    np.testing.assert_array_equal(source.labels, [0, 0, 1])
    assert source.describe().endswith(f"1 unreadable skipped: {path}: sample '001'")


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    path = write(tmp_path / "calib.tar", samples(0, 2))
    source = opened(path)
    path.unlink()
    with pytest.raises(DataError, match="sample '000': cannot be read"):
        next(source.batches(2))
    with pytest.raises(DataError, match=r"calib\.tar: cannot be read"):
        source.digest()


def test_the_same_key_in_two_shards_is_two_samples(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", samples(0, 2))
    write(tmp_path / "1.tar", samples(0, 2))
    check(opened(tmp_path), [0, 1, 0, 1])


@pytest.mark.parametrize("end", [0, 100, 1536 + 600, 1536 + 512 + 3])
def test_archives_that_are_cut_off(tmp_path: Path, end: int) -> None:
    path = write(tmp_path / "calib.tar", samples(0, 4))
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(DataError, match=r"calib\.tar"):
        opened(path)


def test_samples_whose_labels_are_not_read_need_none(tmp_path: Path) -> None:
    path = write(tmp_path / "target.tar", [member for member in samples(0, 3) if member[0].endswith(".png")])
    source = opened(path, labels=NO_LABELS)
    check(source, range(3))
    assert source.labels.tolist() == [-1, -1, -1]
