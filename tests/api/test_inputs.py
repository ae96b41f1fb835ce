"""Models that are not files: bytes and protobufs, in and, without an output, out again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import PLAIN, TILTED, loaded, outputs_of, refused, with_options
from tna_onnx.errors import UsageError


def _path(path: Path) -> Any:
    return path


def _text(path: Path) -> Any:
    return str(path)


def _bytes(path: Path) -> Any:
    return path.read_bytes()


def _bytearray(path: Path) -> Any:
    return bytearray(path.read_bytes())


def _memoryview(path: Path) -> Any:
    return memoryview(path.read_bytes())


def _proto(path: Path) -> Any:
    return onnx.load(path)


FORMS: list[Callable[[Path], Any]] = [_path, _text, _bytes, _bytearray, _memoryview, _proto]


@pytest.fixture(scope="module")
def through_file(small: Small, tmp_path_factory: pytest.TempPathFactory) -> tna_onnx.Report:
    """Calibrate the file into a file, which is what every other way must come to."""
    output = tmp_path_factory.mktemp("file") / "o.onnx"
    report = tna_onnx.calibrate(small.model, small.calib, eval=small.test, output=output, **PLAIN)
    assert report.recalibrated is None
    return report


def form_name(form: Callable[[Path], Any]) -> str:
    return form.__name__.strip("_")


def classify(model: Path | onnx.ModelProto, data: Path) -> np.ndarray:
    logits: np.ndarray = outputs_of(model, loaded(data)["x"])["logits"]
    return logits


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=form_name)
def test_the_same_head_is_found(form: Callable[[Path], Any], small: Small) -> None:
    found, expected = tna_onnx.inspect(form(small.model)), tna_onnx.inspect(small.model)
    assert found.heads == expected.heads
    assert found.inputs == expected.inputs
    assert found.model == (str(small.model) if form in (_path, _text) else "the model in memory")


def test_without_an_output_the_report_has_the_model(
    small: Small, through_file: tna_onnx.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = tna_onnx.calibrate(small.model.read_bytes(), small.calib, eval=small.test, **PLAIN)
    assert list(tmp_path.iterdir()) == []
    assert (report.output, report.model) == ("", "the model in memory")
    assert isinstance(report.recalibrated, onnx.ModelProto)
    onnx.checker.check_model(report.recalibrated, full_check=True)

    expected = classify(Path(through_file.output), small.test)
    np.testing.assert_array_equal(classify(report.recalibrated, small.test), expected)
    assert report.comparison == through_file.comparison
    assert not np.array_equal(expected, classify(small.model, small.test))


def test_the_model_in_memory_is_not_changed(small: Small) -> None:
    proto = onnx.load(small.model)
    before = proto.SerializeToString(deterministic=True)
    report = tna_onnx.calibrate(proto, small.calib, **PLAIN | {"map": "ets"})
    assert proto.SerializeToString(deterministic=True) == before
    assert report.recalibrated is not proto


def test_what_came_out_goes_in_again(small: Small) -> None:
    first = with_options(tna_onnx.calibrate, onnx.load(small.model), small.calib, **TILTED | {"map": "none"})
    assert first.recalibrated is not None
    with pytest.raises(tna_onnx.DataError, match="was recalibrated on these data"):
        tna_onnx.calibrate(first.recalibrated, small.calib, **PLAIN)
    with pytest.raises(tna_onnx.DataError, match="was recalibrated on these data"):
        tna_onnx.calibrate(first.recalibrated, small.test, eval=small.calib, **PLAIN)
    second = tna_onnx.calibrate(first.recalibrated, small.test, **PLAIN)
    assert second.recalibrated is not None
    found = tna_onnx.evaluate(second.recalibrated, small.test, device="cpu")
    predicted = classify(second.recalibrated, small.test).argmax(axis=1)
    assert found.metrics.accuracy == pytest.approx(np.mean(predicted == loaded(small.test)["labels"]))


# --- what does not go in


@pytest.mark.parametrize("wrong", [None, 3, [], {"graph": 1}, onnx.GraphProto(), np.zeros(3)], ids=repr)
def test_other_things(wrong: object, small: Small) -> None:
    with pytest.raises(tna_onnx.UsageError, match=r"expected a path, bytes or an onnx\.ModelProto") as caught:
        tna_onnx.inspect(wrong)
    assert f"got {type(wrong).__name__}" in str(caught.value)


def external(folder: Path, small: Small) -> Path:
    path = folder / "external.onnx"
    onnx.save_model(onnx.load(small.model), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_a_proto_whose_data_lie_elsewhere(small: Small, tmp_path: Path) -> None:
    """Nothing in it says where; guessing the working folder could read another model's weights."""
    proto = onnx.load(external(tmp_path, small), load_external_data=False)
    with pytest.raises(tna_onnx.UsageError, match="refers to external data without saying where they lie"):
        tna_onnx.calibrate(proto, small.calib, **PLAIN)


def test_bytes_whose_data_lie_elsewhere(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, although the working folder has a file of that name."""
    data = external(tmp_path, small).read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tna_onnx.TnaError, match=r"external data|weights\.bin"):
        tna_onnx.calibrate(data, small.calib, **PLAIN)


@pytest.mark.parametrize("level", [20, 99.99, float("nan")])
def test_a_confidence_level_has_one_range(small: Small, level: float) -> None:
    message = f"confidence_level must be from 50 to 99.9, in per cent; got {level}"
    with pytest.raises(tna_onnx.UsageError, match=message):
        tna_onnx.calibrate(small.model, small.calib, settings=tna_onnx.Settings(confidence_level=level))
    with pytest.raises(tna_onnx.UsageError, match=message):
        tna_onnx.compare([small.model, small.model], small.calib, confidence_level=level)


@pytest.mark.parametrize("wrong", [0, -1, "auto", "64", 1.5, True])
def test_samples_per_run_are_a_whole_number(small: Small, wrong: Any) -> None:
    with pytest.raises(UsageError, match="batch_size must be"):
        tna_onnx.evaluate(small.model, small.test, batch_size=wrong)


@pytest.mark.parametrize("text", ["auto", "0", "1.5"])
def test_samples_per_run_on_the_command_line(small: Small, text: str) -> None:
    refused(2, "batch-size", "evaluate", small.model, small.test, "--batch-size", text)
