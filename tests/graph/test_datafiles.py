"""Which files a model may keep its data in: nothing from outside its folder is read, and nothing that never ends."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.graph.samples import CASES
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import load_model

SECRET = b"TOP SECRET BYTES" * 100


def hostile(folder: Path, **entries: str) -> Path:
    """Write a model whose weight has its data where the entries say."""
    path = CASES["external data"]().write(folder).path
    proto = onnx.load(path, load_external_data=False)
    for entry in next(t for t in proto.graph.initializer if t.name == "weight").external_data:
        entry.value = entries.get(entry.key, entry.value)
    path.write_bytes(proto.SerializeToString())
    return path


def refused(path: Path) -> str:
    with pytest.raises(UnsupportedModel) as caught:
        load_model(path)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a model, and a secret beside it."""
    (tmp_path / "secret.txt").write_bytes(SECRET)
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


# --- places


@pytest.mark.parametrize(
    "location",
    ["../secret.txt", "x/../../secret.txt", "/etc/passwd", "/dev/zero", "C:\\secret.txt", "..\\secret.txt", "\\secret",
     "", ".", "*/_ORT_MEM_ADDR_/*"],
)  # fmt: skip
def test_a_location_that_leads_out(location: str, folder: Path) -> None:
    assert f"external data '{location}' lie outside the model's folder" in refused(hostile(folder, location=location))


def _file(folder: Path) -> str:
    (folder / "w.bin").symlink_to("../secret.txt")
    return "w.bin"


def _folder(folder: Path) -> str:
    (folder / "sub").symlink_to("..", target_is_directory=True)
    return "sub/secret.txt"


def _chain(folder: Path) -> str:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to(folder.parent / "secret.txt")
    return "a"


@pytest.mark.parametrize("link", [_file, _folder, _chain])
def test_a_link_that_leads_out(link: Callable[[Path], str], folder: Path) -> None:
    message = refused(hostile(folder, location=link(folder)))
    assert "lie outside the model's folder, behind a link to " in message
    assert str(folder.parent / "secret.txt") in message


def test_a_link_in_a_circle(folder: Path) -> None:
    (folder / "w.bin").symlink_to("w.bin")
    assert "external data 'w.bin' " in refused(hostile(folder, location="w.bin"))


@pytest.mark.parametrize("location", ["link.bin", "sub/link.bin", "sub/../weights.bin"])
def test_a_link_inside_the_folder(location: str, folder: Path) -> None:
    (folder / "sub").mkdir()
    path = hostile(folder)
    for name in ("link.bin", "sub/link.bin"):
        (folder / name).symlink_to(folder / "weights.bin")
    weight = load_model(path).initializers["weight"]
    expected = load_model(path).array(weight).tobytes()
    path = hostile(folder, location=location)
    if ".." in location:
        assert "lie outside" in refused(path)
    else:
        model = load_model(path)
        assert model.array(model.initializers["weight"]).tobytes() == expected


def test_a_download_cache(folder: Path, tmp_path: Path) -> None:
    """Links to blobs in one folder; but not to what lies below it, or beside it."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    hostile(folder, location="data")
    (folder / "model.onnx").rename(blobs / "abc")
    (folder / "weights.bin").rename(blobs / "def")
    (folder / "model.onnx").symlink_to("../blobs/abc")
    (folder / "weights.bin").symlink_to("../blobs/def")
    (folder / "data").symlink_to("../blobs/def")
    model = load_model(folder / "model.onnx")
    assert model.array(model.initializers["weight"]).size
    (blobs / "below").mkdir()
    (blobs / "below" / "def").write_bytes((blobs / "def").read_bytes())
    (folder / "data").unlink()
    (folder / "data").symlink_to("../blobs/below/def")
    assert "behind a link" in refused(folder / "model.onnx")


def test_a_location_that_is_no_text(folder: Path) -> None:
    path = hostile(folder, location="weights!bin")
    path.write_bytes(path.read_bytes().replace(b"weights!bin", b"weights\xffbin"))
    assert "tensor 'weight' has external data in a place that is not UTF-8 text" in refused(path)


# --- kinds of files


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


@pytest.mark.parametrize("make", [_pipe, _socket, Path.mkdir])
def test_no_regular_file(make: Callable[[Path], None], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # the path of a socket must be short
    make(folder / "w.bin")
    assert "external data 'w.bin' cannot be read: not a regular file" in refused(hostile(folder, location="w.bin"))


def test_a_file_that_may_not_be_read(folder: Path) -> None:
    path = hostile(folder)
    (folder / "weights.bin").chmod(0)
    if os.access(folder / "weights.bin", os.R_OK):
        pytest.skip("permissions do not bind this user, who is root")
    assert "cannot be read: Permission denied" in refused(path)


# --- ranges


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("value", ["-4", " 4", "4_0", "4.0", "", "٤", "9" * 19, "9" * 5000])
def test_no_number_of_bytes(key: str, value: str, folder: Path) -> None:
    message = refused(hostile(folder, **{key: value}))
    assert (
        f"model.onnx: tensor 'weight' has external data with the {key} '{value[:40]}'; expected a number of bytes"
        in message
    )


def test_more_than_the_file_has(folder: Path) -> None:
    """Nothing is allocated for it."""
    assert "has 228 bytes, but tensor 'weight' ends at 1,000,000,000,000,000," in refused(
        hostile(folder, offset="9" * 18)
    )


@pytest.mark.parametrize("length", ["0", "71", "73", "9" * 18])
def test_a_length_that_is_not_of_type_and_shape(length: str, folder: Path) -> None:
    """ONNX Runtime takes a length of 0 for none; the weight has 18 numbers of 4 bytes."""
    assert "expected 72" in refused(hostile(folder, length=length))


def test_words_other_than_those_of_a_place(folder: Path) -> None:
    """ONNX Runtime takes the bytes at `prepacked_0` in place of the tensor's."""
    path = hostile(folder)
    proto = onnx.load(path, load_external_data=False)
    tensor = next(t for t in proto.graph.initializer if t.name == "weight")
    tensor.external_data.add(key="prepacked_0", value="MlasSQNBit|0|72")
    path.write_bytes(proto.SerializeToString())
    assert "'prepacked_0'" in refused(path)


# --- through the public functions
