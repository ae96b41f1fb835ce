"""A model gets its name in one step, whatever ends the process; old data files go, those of others stay."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.conftest import ROOT
from tests.graph.samples import CASES
from tests.killed import UNRELATED
from tna_onnx import files
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.save import pending
from tna_onnx.graph.scores import choose_head


@pytest.fixture
def external(tmp_path: Path) -> Model:
    (tmp_path / "source").mkdir()
    return CASES["external data"]().write(tmp_path / "source")


def write(model: Model, factor: float, output: Path) -> None:
    """Write the model with a scaled weight."""
    head = choose_head(model)
    with pending(model, rewrite(model, head, factor * head.weight, metadata={}).proto, output):
        pass


def save(model: Model, factor: float, output: Path) -> str:
    """Write the model with a scaled weight; returns the name of its data file."""
    write(model, factor, output)
    (name,) = load_model(output).external_files
    return name


def weight_in(path: Path) -> np.ndarray:
    proto = onnx.load(path)
    return next(numpy_helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name == "weight")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["model", "result"])
def test_a_run_that_is_killed_anywhere_leaves_the_old_or_the_new(what: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed", what, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kills) >= {"model": 30, "result": 8}[what]
    assert {kill["opens as"] for kill in kills} == {"old", "new"}
    # Once new, always new: the rename of the model is the one step that counts.
    order = [kill["opens as"] for kill in kills]
    assert order == sorted(order, reverse=True)
    assert {kill["then"] for kill in kills} == {"new"}
    # What a killed run has left is gone after the next one, and nothing else is.
    others = [name for name in kills[0]["files"] if name not in UNRELATED]
    assert len(others) == {"model": 2, "result": 1}[what]
    assert all(kill["files"] == kills[0]["files"] for kill in kills)


@pytest.mark.parametrize("copy", ["backup.onnx", "new.onnx.bak", "saved"])
def test_data_that_a_copy_of_the_old_model_needs_stay(external: Model, copy: str, tmp_path: Path) -> None:
    old = save(external, 2, tmp_path / "new.onnx")
    shutil.copy(tmp_path / "new.onnx", tmp_path / copy)
    os.mkfifo(tmp_path / "pipe")  # is not opened
    (tmp_path / "empty.onnx").touch()
    save(external, 3, tmp_path / "new.onnx")
    assert (tmp_path / old).is_file()
    np.testing.assert_array_equal(weight_in(tmp_path / copy), 2 * weight_in(external.path))
    (tmp_path / copy).unlink()
    save(external, 4, tmp_path / "new.onnx")
    assert not (tmp_path / old).exists()


def test_an_interrupt_right_after_the_rename(external: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new model stands: its data must stay."""
    output = tmp_path / "new.onnx"
    save(external, 2, output)
    real = os.replace

    def interrupted(source: Path, target: Path) -> None:
        real(source, target)
        if Path(target).name == output.name:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(external, 3, output)
    np.testing.assert_array_equal(weight_in(output), 3 * weight_in(external.path))


def test_a_program_that_holds_the_folder_and_waits_for_this(
    external: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `flock FOLDER tna-onnx ...` does."""
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    output = tmp_path / "new.onnx"
    old = save(external, 2, output)
    with files.alone_in(tmp_path):
        save(external, 3, output)
    np.testing.assert_array_equal(weight_in(output), 3 * weight_in(external.path))
    assert (tmp_path / old).exists()  # nobody else may be removed from under
    save(external, 4, output)
    assert not (tmp_path / old).exists()


@pytest.mark.slow
def test_runs_at_the_same_time_on_one_output(external: Model, tmp_path: Path) -> None:
    """Each of them may come last; what is there then is one of them, whole."""
    code = (
        "import sys; from pathlib import Path; from tests.graph.test_commit import write, load_model\n"
        "model = load_model(sys.argv[1])\n"
        "for k in range(4): write(model, float(sys.argv[3]) + k, Path(sys.argv[2]))"
    )
    output = tmp_path / "new.onnx"
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(external.path), str(output), start], cwd=ROOT)
        for start in ("100", "200")
    ]
    opened = 0
    while any(run.poll() is None for run in runs):
        if output.exists():
            # The data of a model that was just replaced may be gone by the time that they are looked for.
            try:
                weight = weight_in(output)
            except (OSError, RuntimeError, ValueError, onnx.checker.ValidationError):
                time.sleep(0.05)
                continue
            factor = float(np.median(weight / weight_in(external.path)))
            assert round(factor) in {start + k for start in (100, 200) for k in range(4)}
            opened += 1
    assert [run.returncode for run in runs] == [0, 0]
    assert opened
    name, factor = load_model(output).external_files[0], float(np.median(weight_in(output) / weight_in(external.path)))
    assert round(factor) in (103, 203)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["source", "new.onnx", name])


def test_a_folder_that_another_run_removes_before_it_is_opened(
    external: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a leftover, which it cannot be told from until it is locked."""
    removed = []

    def make(path: Path) -> int:
        path.mkdir()
        if not removed:
            removed.append(path)
            path.rmdir()
        return os.open(path, os.O_RDONLY)

    monkeypatch.setattr(files, "_make_folder", make)
    save(external, 2, tmp_path / "new.onnx")
    assert removed
    np.testing.assert_array_equal(weight_in(tmp_path / "new.onnx"), 2 * weight_in(external.path))
