"""Every command on sessions that say that they run on CUDA, with the search on a strict device: as on the CPU."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import tna_onnx
from tests.pipeline import test_integer_heads, test_label_models, test_several
from tests.runtime.fakes import CPU, CUDA
from tests.runtimes.matrix import binary, small
from tests.support import loaded, with_options
from tna_onnx.engine.placement import Host
from tna_onnx.pipeline import opening
from tna_onnx.runtime import providers

strict_device = pytest.importorskip("tests.engine.strict_device")
strict = strict_device.strict


class OnCuda:
    """A session on the CPU that says that it is on CUDA."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_providers(self) -> list[str]:
        return [CUDA, CPU]

    def io_binding(self) -> Any:
        return _Binding(self._inner.io_binding(), {info.name: info.type for info in self._inner.get_outputs()})


class _Binding:
    """A binding that refuses what ONNX Runtime's refuses, or ends the process over."""

    def __init__(self, inner: Any, kinds: dict[str, str]) -> None:
        self._inner = inner
        self._kinds = kinds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        assert array.dtype.kind in "biuf"
        self._inner.bind_cpu_input(name, array)

    def bind_output(self, name: str) -> None:
        kind = self._kinds.pop(name)  # once each
        assert kind.startswith("tensor(")
        assert kind != "tensor(string)"
        self._inner.bind_output(name)


class _WithCuda:
    """ONNX Runtime with a CUDA device."""

    def __getattr__(self, name: str) -> Any:
        return getattr(onnxruntime, name)

    def get_available_providers(self) -> list[str]:
        return [CUDA, CPU]

    def InferenceSession(self, model: Any, options: Any, providers: list[Any]) -> Any:  # noqa: N802 - its name
        session = onnxruntime.InferenceSession(model, options, providers=[CPU])
        return OnCuda(session) if len(providers) > 1 else session


@pytest.fixture
def cuda(strict: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put ONNX Runtime on CUDA, and the search on the strict device wherever a session is there."""
    monkeypatch.setattr(providers, "_onnxruntime", _WithCuda)
    monkeypatch.setattr(opening, "placement_of", lambda provider, *_: strict if provider == CUDA else Host())
    return strict


@dataclass(frozen=True)
class Source:
    """A model, and samples to calibrate, to test and to guard with."""

    model: Path
    splits: tuple[dict[str, np.ndarray], ...]
    guarded: bool = True  # whether `guard` and `shift` take it


def forest(folder: Path, *, text: bool = False, zipped: bool = False, reads_text: bool = False) -> Source:
    """Export a random forest on three classes, which has no linear head."""
    skl2onnx = pytest.importorskip("skl2onnx")
    sklearn = pytest.importorskip("sklearn")
    splits = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((400, 4)).astype(np.float32)
        labels = np.digitize(x[:, 0] + x[:, 1] + rng.standard_normal(400), [-0.7, 0.7])
        columns = {"X": x}
        if reads_text:
            x = x.round(1).astype(str)
            columns = {f"column {k}": x[:, k] for k in range(4)}
        splits.append({**columns, "labels": labels})
    del splits[-1]  # the last one trains the model
    if text:
        labels = np.array(["cat", "cow", "dog"])[labels]
    made = sklearn.ensemble.RandomForestClassifier(20, random_state=0)
    if reads_text:
        made = sklearn.pipeline.make_pipeline(sklearn.preprocessing.OneHotEncoder(handle_unknown="ignore"), made)
    kinds = [("X", skl2onnx.common.data_types.guess_data_type(x[:1])[0][1])]
    exported = skl2onnx.to_onnx(made.fit(x, labels), initial_types=kinds, options={"zipmap": zipped})
    (folder / "model.onnx").write_bytes(exported.SerializeToString())
    return Source(folder / "model.onnx", tuple(splits))


def several_labels(folder: Path) -> Source:
    (folder / "model.onnx").write_bytes(test_label_models.model("label").SerializeToString())
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 400, 8)).astype(np.float32)
    labels = (rng.random((2, 400, 4)) < 0.4).astype(np.int64)
    return Source(folder / "model.onnx", tuple({"x": x[k], "labels": labels[k]} for k in range(2)), guarded=False)


def positions(folder: Path) -> Source:
    path = test_several.write(folder, test_several.tokens())
    return Source(path, tuple(test_several.samples(100, (6,), seed) for seed in range(2)), guarded=False)


def quantised(folder: Path) -> Source:
    return Source(test_integer_heads.quantized("dynamic", folder), tuple(map(test_integer_heads.samples, (3, 4, 5))))


def network(folder: Path, make: Callable[[Path], Any]) -> Source:
    """Use a model of the matrix of runtimes, with fewer samples."""
    source = make(folder)
    arrays = loaded(source.calib)
    return Source(source.model, tuple({name: array[k::8] for name, array in arrays.items()} for k in range(3)))


SLOW = pytest.mark.slow
SOURCES: list[Any] = [
    pytest.param(forest, {}, id="numbers as labels", marks=SLOW),
    pytest.param(partial(forest, text=True), {"map": "ets"}, id="text as labels", marks=SLOW),
    pytest.param(partial(forest, text=True, zipped=True), {"map": "ets"}, id="ZipMap of text"),
    pytest.param(partial(forest, reads_text=True), {"map": "ts"}, id="text as input"),
    pytest.param(several_labels, {"search": "none", "map": "label-platt"}, id="several labels, Platt"),
    pytest.param(positions, {"map": "ts"}, id="positions"),
    pytest.param(quantised, {"map": "ts"}, id="quantised"),
    pytest.param(partial(network, make=binary), {"search": "none", "map": "beta"}, id="two classes, beta"),
    pytest.param(partial(network, make=binary), {}, id="two classes", marks=SLOW),
    pytest.param(
        partial(network, make=small), {"search": "sparse", "map": "ts", "add": ["set", "confidence"]}, id="decisions"
    ),
    pytest.param(partial(network, make=small), {"search": "sparse", "map": "isotonic"}, id="isotonic", marks=SLOW),
]


@pytest.mark.parametrize(("make", "words"), SOURCES)
def test_commands(make: Callable[[Path], Source], words: dict[str, Any], cuda: Any, tmp_path: Path) -> None:
    source = make(tmp_path)
    calib, test, *more = source.splits
    output = tmp_path / "o.onnx"
    run = partial(with_options, tna_onnx.calibrate, source.model, calib, eval=test, **words)
    here = run(output=tmp_path / "cpu.onnx", device="cpu")
    assert cuda.count == 0
    there = run(output=output)
    assert (here.provider, there.provider) == (CPU, CUDA)
    assert not [note for note in there.notes if "instead of" in note]
    assert cuda.count > 0 or not there.head or make is quantised
    after = pytest.approx(there.comparison.after.nll, abs=1e-4)
    assert here.comparison.after.nll == after
    tna_onnx.verify(source.model, output, data=test)
    assert tna_onnx.evaluate(output, test).metrics.nll == after
    assert tna_onnx.compare([output, output], test).models[1].metrics.nll == after
    if source.guarded:
        guarded = tna_onnx.guard(source.model, *more, output=tmp_path / "g.onnx", add=["set", "confidence"])
        shifted = tna_onnx.shift(source.model, *more, target_prior="uniform", output=tmp_path / "s.onnx")
        assert (guarded.provider, shifted.provider) == (CUDA, CUDA)
