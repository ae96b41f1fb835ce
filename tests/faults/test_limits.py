"""Limits of the system: size of files, open files, memory, folders that cannot be written, two runs on one output.

A run that fails says so in one line, has a documented exit code, and leaves each file as it was. Limits are set in the
child process, so no test needs a small disk or another user.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Small
from tests.support import PLAIN, program, run, words_of

resource = pytest.importorskip("resource")

pytestmark = pytest.mark.slow  # 14 runs of the real program

FILES = ("o.onnx", "r.html", "r.json")
OLDER = b"older"
DOCUMENTED = {1, 2, 3, 4, 5, 6}


def words(small: Small, folder: Path, *more: object) -> list[str]:
    files = ["-o", folder / "o.onnx", "--json", folder / "r.json", "--report", folder / "r.html"]
    given = ["calibrate", small.model, "--calib", small.calib, *words_of(PLAIN), "-q", *files, *more]
    return [str(word) for word in given]


# the work too, which would load with the first call
IMPORTS = "import resource, tna_onnx.cli.command, tna_onnx.api.calibrate, tna_onnx.pipeline.recalibrate, onnxruntime"

# the address space in use, in bytes
IN_USE = "int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()"


def limited(name: str, value: int | str) -> str:
    """Return code that sets a limit once everything is imported, and before the command does anything."""
    return f"{IMPORTS}\n_limit = {value}\nresource.setrlimit(resource.{name}, (_limit, _limit))"


def assert_clean(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """Check that a run has either failed as documented, or written every file."""
    names = sorted(path.name for path in folder.iterdir())
    assert names == list(FILES), (names, done.stderr)
    changed = [name for name in FILES if (folder / name).read_bytes() != OLDER]
    if done.returncode == 0:
        assert (changed, done.stderr) == (list(FILES), "")
        return
    assert done.returncode in DOCUMENTED, done.stderr
    # ONNX Runtime ends its messages with empty lines; onnx prints one line if memory ends while it is imported
    lines = [line for line in done.stderr.splitlines() if line not in ("", "Schema error: std::bad_alloc")]
    assert lines, done.returncode
    assert all(line.startswith("Error: ") for line in lines), done.stderr
    assert "bug" not in done.stderr
    # With 6 the model is written, and the other results may be; with any other code nothing is.
    assert "o.onnx" in changed if done.returncode == 6 else not changed, done.stderr
    if "r.json" in changed:
        json.loads((folder / "r.json").read_text())
    if "r.html" in changed:
        assert (folder / "r.html").read_text(encoding="utf-8").rstrip().endswith("</html>")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Return a folder with older files of every name that a run writes."""
    folder = tmp_path / "out"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes(OLDER)
    return folder


# 1,500 samples of 37 float32 fit in 300 kB, the model in 4 kB, the JSON in 10 kB, the page in 100 kB.
@pytest.mark.parametrize("size", [0, 6_000, 50_000])
def test_a_full_disk(small: Small, older: Path, size: int) -> None:
    """A file that may not grow gives EFBIG where a full disk gives ENOSPC; Python ignores SIGXFSZ."""
    assert_clean(run(*words(small, older), code=limited("RLIMIT_FSIZE", size)), older)


def test_a_full_disk_under_a_feature_store(small: Small, older: Path) -> None:
    cache = older.parent / "cache"
    assert_clean(run(*words(small, older, "--cache", cache), code=limited("RLIMIT_FSIZE", 6_000)), older)
    done = run(*words(small, older, "--cache", cache))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("free", [0, 2, 8])
def test_no_more_files_can_be_opened(small: Small, older: Path, free: int) -> None:
    taken = "import os; _free = os.dup(0); os.close(_free)\n"  # the lowest number that is free
    assert_clean(run(*words(small, older), code=taken + limited("RLIMIT_NOFILE", f"_free + {free}")), older)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("free", [1, 16, 128])
def test_too_little_memory(small: Small, older: Path, free: int) -> None:
    """With so many MiB beyond what imports have taken."""
    assert_clean(run(*words(small, older), code=limited("RLIMIT_AS", f"{IN_USE} + {free} * 2**20")), older)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("command", ["evaluate M D", "compare M M --data D", "guard M D -o O", "features M D -o O"])
def test_no_memory_for_libraries(command: str, small: Small, tmp_path: Path) -> None:
    """OpenBLAS ends the process with 1, which `--max-ece` and the like stand for."""
    paths = {"M": small.model, "D": small.calib, "O": tmp_path / "o"}
    code = limited("RLIMIT_AS", f"{IN_USE} + 60 * 2**20")
    done = run(*(str(paths.get(word, word)) for word in command.split()), code=code)
    assert (done.returncode, done.stderr.count("\n"), done.stderr[:7]) == (5, 1, "Error: "), done.stderr
    assert not (tmp_path / "o").exists()


_PARSED = """
import resource, numpy as np
from onnx import helper
from tests.builders import small_model
from tna_onnx.graph.load import load_model
weight = np.ones((2**22, 4), np.float32)
nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
data = small_model(nodes, {"x": ["N", 2**22]}, {"y": ["N", 4]}, {"w": weight}).SerializeToString()
space = SPACE + 2**24
resource.setrlimit(resource.RLIMIT_AS, (space, space))
try:
    load_model(data)
except MemoryError:
    print("no memory")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_model_that_memory_does_not_hold_is_not_called_damaged() -> None:
    """Protobuf has one error for both."""
    code = _PARSED.replace("SPACE", IN_USE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "no memory\n", done.stderr


@pytest.fixture
def read_only(older: Path) -> Iterator[Path]:
    """Make the folder read-only."""
    older.chmod(0o500)
    if os.access(older, os.W_OK):  # the administrator may write anywhere
        older.chmod(0o700)
        pytest.skip("this user may write into read-only folders")
    yield older
    older.chmod(0o700)


def test_a_read_only_folder(small: Small, read_only: Path) -> None:
    done = run(*words(small, read_only))
    assert done.returncode == 2
    assert_clean(done, read_only)


def test_a_folder_that_cannot_be_written_for_the_administrator_either(small: Small) -> None:
    """A file system of the kernel takes no files."""
    if not Path("/proc/self").is_dir():
        pytest.skip("needs /proc")
    done = run("calibrate", small.model, "--calib", small.calib, *words_of(PLAIN), "-q", "-o", "/proc/self/o.onnx")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: /proc/self/o.onnx: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced there")
def test_runs_at_the_same_time_on_one_output_and_one_cache(small: Small, older: Path) -> None:
    """Each may come last; what is there then is whole, and of one of them."""
    given = words(small, older, "--cache", older.parent / "cache")
    runs = [subprocess.Popen(program(*given), stdout=-1, stderr=-1, text=True) for _ in range(3)]
    ends = [(*process.communicate(timeout=100), process.returncode) for process in runs]
    assert 0 in {code for _, _, code in ends}
    for _, errors, code in ends:
        # A run may find the cache in use, or the output of another under its own; it says so and fails whole.
        assert code == 0 or (code in DOCUMENTED and errors.startswith("Error: ")), errors
    assert sorted(path.name for path in older.iterdir()) == list(FILES)
    alone = older.parent / "alone"
    alone.mkdir()
    assert run(*words(small, alone)).returncode == 0
    assert (older / "o.onnx").read_bytes() == (alone / "o.onnx").read_bytes()
