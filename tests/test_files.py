"""Files that are there whole or not at all, and which of them are opened."""

import errno
import itertools
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Demo
from tests.support import cli
from tna_onnx import files
from tna_onnx.files import alone_in, is_replaced, open_regular, remove_leftovers, temporary_folder, write_file

NAME = f".tna-onnx-{files._machine()}-0123456789abcdef.tmp"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- reading


def _link(path: Path) -> None:
    (path.parent / "target").write_bytes(b"x")
    path.symlink_to("target")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with open_regular(tmp_path / "file") as stream:
        assert stream.read() == b"content"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, _link, _socket])
def test_nothing_else_is_opened(make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make(Path("file"))
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Path("file"))


def test_devices_are_not_opened() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Path("/dev/zero"))


def test_a_pipe_that_takes_the_place_of_the_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the opening; without a writer, an ordinary opening would wait for ever."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    real = os.open

    def swapped(name: Path, *args: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return real(name, *args)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(path)


# --- writing


def test_new_and_old_content(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for content in (b"one", b"two"):
        write_file(path, content)
        assert path.read_bytes() == content
    assert names(tmp_path) == ["r.json"]


def test_modes(tmp_path: Path) -> None:
    """As of any new file; as it was where there is one."""
    (tmp_path / "plain").touch()
    path = tmp_path / "r.json"
    write_file(path, b"")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    path.chmod(0o604)
    write_file(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o604


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "r.json"
    target.write_bytes(b"old")
    (tmp_path / "r.json").symlink_to(target)
    write_file(tmp_path / "r.json", b"new")
    assert (tmp_path / "r.json").is_symlink()
    assert target.read_bytes() == b"new"
    assert names(tmp_path / "elsewhere") == ["r.json"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(path, b"new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_what_a_descriptor_stands_for_stays(tmp_path: Path) -> None:
    """As /dev/stdout does when it goes to a file."""
    with (tmp_path / "log").open("wb") as stream:
        inode = (tmp_path / "log").stat().st_ino
        path = Path(f"/dev/fd/{stream.fileno()}")
        assert not is_replaced(path)
        write_file(path, b"new")
    assert (tmp_path / "log").stat().st_ino == inode
    assert (tmp_path / "log").read_bytes() == b"new"


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file(
    call: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["r.json"]


@pytest.mark.parametrize("call", ["open", "replace"])
def test_where_nothing_can_be_renamed_the_file_is_written(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a read-only folder nothing can be made; a file that is mounted by itself cannot be replaced."""
    path = tmp_path / "r.json"
    path.write_bytes(b"old")
    real = getattr(os, call)

    def refuse(name: Path, *rest: object, **options: object) -> object:
        if files._TEMPORARY.fullmatch(Path(name).name):
            raise OSError(errno.EACCES if call == "open" else errno.EBUSY, "no")
        return real(name, *rest, **options)

    monkeypatch.setattr(os, call, refuse)
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["r.json"]
    if call == "open":
        with pytest.raises(OSError, match="no"):
            write_file(tmp_path / "another.json", b"new")


# --- leftovers


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leftovers_of_the_dead_are_removed(kind: str, tmp_path: Path) -> None:
    left = tmp_path / NAME
    if kind == "file":
        left.touch()
    else:
        left.mkdir()
        (left / "model.onnx").touch()
    write_file(tmp_path / "r.json", b"")
    assert names(tmp_path) == ["r.json"]


def test_the_temporary_folder_of_the_living_stays(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as folder:
        (folder / "model.onnx").touch()
        remove_leftovers(tmp_path)
        with temporary_folder(tmp_path) as other:
            assert other != folder
        assert names(folder) == ["model.onnx"]
    assert names(tmp_path) == []


def test_nothing_of_another_name_is_removed(tmp_path: Path) -> None:
    machine = files._machine()
    kept = [
        f".tna-onnx-{machine}-0123.tmp",
        f"{NAME}.bak",
        f"tna-onnx-{machine}-0123456789abcdef.tmp",
        f".tna-onnx-{machine}-0123456789ABCDEF.tmp",
    ]
    for name in kept:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted(kept)


@pytest.mark.parametrize(("age", "stays"), [(3600, True), (2 * 86400, False)])
def test_those_of_another_machine_go_after_a_day(age: int, *, stays: bool, tmp_path: Path) -> None:
    """Its locks on a shared disk are not seen here, so it may live."""
    left = tmp_path / ".tna-onnx-0badc0de-0123456789abcdef.tmp"
    left.touch()
    os.utime(left, (time.time() - age,) * 2)
    remove_leftovers(tmp_path)
    assert left.exists() == stays


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / NAME).symlink_to(tmp_path / "mine", target_is_directory=True)
    remove_leftovers(tmp_path / "folder")
    assert names(tmp_path / "mine") == ["file"]


def test_a_folder_that_was_taken_for_a_leftover_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between making and locking it, another run may look for leftovers."""
    real = files._lock
    seen: list[int] = []

    def lock(descriptor: int) -> bool | None:
        seen.append(descriptor)
        if len(seen) == 1:
            next(tmp_path.iterdir()).rmdir()
        return real(descriptor)

    monkeypatch.setattr(files, "_lock", lock)
    with temporary_folder(tmp_path) as folder:
        assert folder.is_dir()
    assert len(seen) == 2


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc")
def test_a_folder_that_holds_no_files_is_an_error() -> None:
    with pytest.raises(OSError, match="No such file"), temporary_folder(Path("/proc")):
        pass


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    with alone_in(tmp_path) as first, alone_in(tmp_path) as second:
        assert (first, second) == (True, False)
    with alone_in(tmp_path) as alone:
        assert alone


LINKED = ["inspect L", "card L", "calibrate M L", "features M D -o L", "features M D --cache L"]
LINKED += [f"calibrate M D --{flag} L" for flag in ("output", "json", "config", "labels", "cache")]


@pytest.mark.parametrize(("words", "loop"), [*zip(LINKED, itertools.cycle(["L", "none/../L", "L/x"]), strict=False)])
def test_a_link_to_itself_is_no_bug(words: str, loop: str, demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "L").symlink_to(tmp_path / "L")
    paths = {"L": tmp_path / loop, "M": demo.model, "D": demo.calib}
    result = cli(*(paths.get(word, word) for word in words.split()))
    assert result.exit_code in (2, 4)
    assert str(tmp_path / loop) in result.output


@pytest.mark.skipif(sys.platform == "win32", reason="a folder that is in use cannot be removed there")
@pytest.mark.parametrize("words", ["inspect x.onnx", "evaluate M x.npz", "calibrate M D -o o.onnx"])
def test_a_current_folder_that_is_gone(words: str, demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    paths = {"M": demo.model, "D": demo.calib}
    result = cli(*(paths.get(word, word) for word in words.split()))
    assert (result.exit_code, "current folder is gone" in result.output) == (2, True), result.output


@pytest.mark.parametrize("words", ["inspect O", "verify M O", "calibrate M D -o N"])
def test_a_model_with_the_ending_of_another_format(words: str, demo: Demo, tmp_path: Path) -> None:
    """ONNX Runtime reads no protobuf in a file of that ending."""
    shutil.copy(demo.model, tmp_path / "o.ort")
    paths = {"O": tmp_path / "o.ort", "N": tmp_path / "n.ort", "M": demo.model, "D": demo.calib}
    assert cli(*(paths.get(word, word) for word in words.split())).exit_code == 2
    assert names(tmp_path) == ["o.ort"]


@pytest.mark.skipif(sys.platform != "linux", reason="names are text there")
@pytest.mark.parametrize(
    "words",
    [
        "inspect B/m.onnx",
        "evaluate B/m.onnx D",
        "verify M B/m.onnx",
        "compare M B/m.onnx --data D",
        "features B/m.onnx D",
    ]
    + [f"{command} M D -o B/new.onnx" for command in ("calibrate", "guard", "shift --target-prior uniform")],
)
def test_a_model_needs_a_path_that_is_text(words: str, demo: Demo, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    shutil.copy(demo.model, folder / "m.onnx")
    paths = {"B": folder, "M": demo.model, "D": demo.calib}
    arguments = [word.replace(word[0], str(paths[word[0]]), 1) if word[0] in paths else word for word in words.split()]
    assert cli(*arguments, *["--cache", tmp_path] * words.startswith("features")).exit_code == 2
    assert names(folder) == ["m.onnx"]


def test_links_are_followed_in_one_place() -> None:
    """`Path.resolve` raises RuntimeError for a link to itself, below Python 3.13."""
    sources = Path(files.__file__).parent.rglob("*.py")
    assert not [path for path in sources if re.search(r"\.resolve\(\)", path.read_text(encoding="utf-8"))]
