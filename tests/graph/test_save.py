"""Saving: refusals before any work, and a file that is there whole or not at all."""

import os
from pathlib import Path

import onnx
import pytest

from tests.graph.samples import CASES
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.graph import save
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.rewrite import unchanged
from tna_onnx.graph.save import check_output, pending
from tna_onnx.graph.scores import choose_head


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return CASES["float32 Gemm"]().write(tmp_path)


@pytest.fixture
def external(tmp_path: Path) -> Model:
    return CASES["external data"]().write(tmp_path)


def refused(model: Model, output: Path, *, overwrite: bool = False) -> str:
    with pytest.raises(UsageError) as caught:
        check_output(model, output, overwrite=overwrite)
    assert str(caught.value).startswith(f"{output}: ")
    return str(caught.value)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory(model: Model, tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "folder").mkdir()
    assert "is a directory; expected a file name" in refused(model, tmp_path / "folder", overwrite=overwrite)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_not_writable_as_the_system_says(
    model: Model, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "old.onnx"
    output.write_bytes(b"an earlier result")
    locked = tmp_path if what == "folder" else output
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked)
    assert "cannot be written" in refused(model, output)


@pytest.mark.parametrize("overwrite", [False, True])
def test_external_data_are_never_the_output(external: Model, tmp_path: Path, overwrite: bool) -> None:
    assert "external data of the input model" in refused(external, tmp_path / "weights.bin", overwrite=overwrite)


# --- all or nothing


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_nothing(
    model: Model, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = files(tmp_path)

    def fail(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    expected = UsageError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught, pending(model, model.proto, tmp_path / "new.onnx"):
        pytest.fail("the block must not run")
    if expected is UsageError:
        assert str(caught.value) == f"{tmp_path / 'new.onnx'}: cannot be written: No space left on device"
    assert files(tmp_path) == state


def test_a_folder_that_is_gone(model: Model, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="cannot be written: No such file"),
        pending(model, model.proto, tmp_path / "a" / "b"),
    ):
        pytest.fail("the block must not run")


def test_a_model_that_protobuf_cannot_hold(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "MAX_BYTES", model.proto.ByteSize() - 1)
    state = files(tmp_path)
    with pytest.raises(UnsupportedModel, match="above 2 GB"), pending(model, model.proto, tmp_path / "new.onnx"):
        pytest.fail("the block must not run")
    assert files(tmp_path) == state


# --- nothing new


def test_nothing_new_is_the_same_bytes(model: Model, tmp_path: Path) -> None:
    """As they are in the file, which another library may have written in another order of fields."""
    data = model.path.read_bytes() + onnx.ModelProto(producer_version="later").SerializeToString()
    model.path.write_bytes(data)
    source = load_model(model.path)
    rewritten = unchanged(source, choose_head(source))
    assert (rewritten.changed, rewritten.added, rewritten.nodes) == (set(), set(), set())
    assert rewritten.proto == source.proto
    assert rewritten.proto.SerializeToString(deterministic=True) != data
    output = tmp_path / "new.onnx"
    with pending(source, rewritten.proto, output, verbatim=True) as path:
        assert path.read_bytes() == data
    assert output.read_bytes() == data


def test_a_source_that_changes_on_the_way_is_not_copied(model: Model, tmp_path: Path) -> None:
    proto = unchanged(model, choose_head(model)).proto
    model.path.write_bytes(model.path.read_bytes() + b"\0")
    with (
        pytest.raises(UsageError, match="was changed while it was being read"),
        pending(model, proto, tmp_path / "new.onnx", verbatim=True),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]
