"""The search on torch: the same scores, fits and choices as with NumPy; torch's host stands in for a CUDA device."""

import operator
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tna_onnx
from tests.conftest import Small
from tests.engine.conftest import FEATURES, N
from tests.support import with_options
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.engine.placement import Host, OnDevice, float32_products, placement_of
from tna_onnx.errors import DeviceError
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps import MAPS
from tna_onnx.numerics.ops import LARGE
from tna_onnx.pipeline import opening
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.runtime import Device
from tna_onnx.search.candidates import SearchSettings


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is in the extra 'gpu'")


@pytest.mark.parametrize(("search", "name"), [("sparse", "ts"), ("complete", "ets"), ("sparse", "none")])
def test_the_same_candidate_is_chosen(
    torch: Any, problem: tuple[FeatureTable, Any, Any], search: str, name: str
) -> None:
    store, weight, bias = problem
    found = []
    for placement in (Host(), OnDevice(torch, "cpu")):
        strategy = Strategy(
            lambda w, placement=placement: HeadLogits(store, w, bias, placement),
            weight, search, name, SearchSettings(objective="nll", max_ensemble_size=40),
        )  # fmt: skip
        found.append(strategy.run(lambda *_: None))
    one, other = found
    assert [(c.angle, c.ensemble_size) for c in one.candidates] == [
        (c.angle, c.ensemble_size) for c in other.candidates
    ]
    np.testing.assert_array_equal(one.weight, other.weight, strict=True)


class _FakeCuda:
    """torch with so many CUDA devices, as far as `placement_of` asks."""

    def __init__(self, count: int) -> None:
        self.__version__ = "2.0"
        self.cuda = types.SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)
        self.backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace(allow_tf32=True)))

    @staticmethod
    def device(name: str) -> str:
        return name

    @staticmethod
    def from_numpy(array: np.ndarray) -> Any:
        return types.SimpleNamespace(to=lambda _: array)


def test_cuda_is_taken_where_the_session_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _FakeCuda(2)
    monkeypatch.setitem(__import__("sys").modules, "torch", fake)
    placed = placement_of("CUDAExecutionProvider", Device("cuda", 1), LARGE)
    assert isinstance(placed, OnDevice)
    assert placed.name == "torch 2.0 on cuda:1"
    assert fake.backends.cuda.matmul.allow_tf32 is True  # which is the process's: only products take it away
    assert isinstance(placement_of("CPUExecutionProvider", Device("auto"), LARGE), Host)
    assert isinstance(placement_of("CUDAExecutionProvider", Device("cuda", 1), LARGE - 1), Host)
    assert isinstance(placement_of("CUDAExecutionProvider", Device("cuda", 2), LARGE), Host)  # torch does not see it
    for torch in (_FakeCuda(0), None):  # no device, not installed
        monkeypatch.setitem(__import__("sys").modules, "torch", torch)
        assert isinstance(placement_of("CUDAExecutionProvider", Device("cuda", 0), LARGE), Host)


@pytest.fixture(params=[True, False])
def allowed(torch: Any, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Set the process's switch for TF32, for one test."""
    switch = torch.backends.cuda.matmul
    before = switch.allow_tf32
    switch.allow_tf32 = request.param
    yield request.param
    switch.allow_tf32 = before


def test_products_are_float32_and_the_process_keeps_its_switch(torch: Any, allowed: bool) -> None:
    switch = torch.backends.cuda.matmul
    with float32_products(torch.zeros(1)):
        assert not switch.allow_tf32
    assert switch.allow_tf32 is allowed
    with pytest.raises(ValueError, match="inside"), float32_products(torch.zeros(1)):
        raise ValueError("inside")
    assert switch.allow_tf32 is allowed
    with float32_products(np.zeros(1)):
        assert switch.allow_tf32 is allowed


@pytest.mark.parametrize("where", ["backends.cuda.matmul", "backends"])
@pytest.mark.parametrize("value", ["tf32", "ieee", "none"])
def test_the_newer_switch_is_kept_too(torch: Any, where: str, value: str) -> None:
    """Set alone, it makes the older one raise where it is read."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("torch has one switch")
    switch = operator.attrgetter(where)(torch)
    before = switch.fp32_precision
    switch.fp32_precision = value
    try:
        found = matmul.fp32_precision
        with float32_products(torch.zeros(1)):
            assert matmul.fp32_precision != "tf32"
            assert not matmul.allow_tf32
        assert matmul.fp32_precision == found
    finally:
        switch.fp32_precision = before
        matmul.allow_tf32 = False
        matmul.fp32_precision = "none"


class Counting(OnDevice):
    """A device with so much room, which notes the shapes of what is moved there."""

    def __init__(self, torch: Any, room: float) -> None:
        super().__init__(torch, "cpu")
        self.room = room
        self.moved: list[tuple[int, ...]] = []

    def put(self, array: Any) -> Any:
        self.moved.append(array.shape)
        return super().put(array)

    def _free(self) -> Any:
        return self.room - sum(table.features.nbytes for table in self._kept)


def test_features_are_moved_once(torch: Any, problem: tuple[FeatureTable, Any, Any]) -> None:
    store, weight, bias = problem
    for room, moves in ((2**40, 1), (store.features.nbytes, 3)):  # less than twice the features
        device = Counting(torch, room)
        for _ in range(3):
            HeadLogits(store, weight, bias, device).scores()
        assert device.moved.count((N, FEATURES)) == moves


@pytest.mark.parametrize(("room", "whole_moved", "part_moved"), [(4.0, 1, 1), (2.2, 1, 2), (1.5, 3, 1)])
def test_a_part_stays_beside_the_whole_while_there_is_room(
    torch: Any, problem: tuple[FeatureTable, Any, Any], room: float, whole_moved: int, part_moved: int
) -> None:
    """Room for so many times the whole: for both, for both if the whole comes first, for the part alone."""
    store, weight, bias = problem
    part = store.part(np.arange(N // 2))
    device = Counting(torch, room * store.features.nbytes)
    for _ in range(3):
        for table in (part, store):
            HeadLogits(table, weight, bias, device).scores()
    assert device.moved.count((N, FEATURES)) == whole_moved
    assert device.moved.count((N // 2, FEATURES)) == part_moved


def test_features_that_do_not_fit_are_not_moved_to_read_labels(
    torch: Any, problem: tuple[FeatureTable, Any, Any]
) -> None:
    device = Counting(torch, 0)
    logits = HeadLogits(*problem, device)
    MAPS["ts"].fit(logits.reduce())  # many passes over the same logits
    logits.predictions()
    assert device.moved.count((N, FEATURES)) == 1


@pytest.mark.parametrize("of_weight", [np.float32, np.float64])
@pytest.mark.parametrize("of_features", [np.float32, np.float64])
def test_dtypes_are_widened_as_numpy_does(
    torch: Any, problem: tuple[FeatureTable, Any, Any], of_weight: Any, of_features: Any
) -> None:
    store, weight, bias = problem
    table = FeatureTable(store.features.astype(of_features), store.labels)
    placed = HeadLogits(table, weight.astype(of_weight), bias.astype(of_weight), OnDevice(torch, "cpu"))
    plain = HeadLogits(table, weight.astype(of_weight), bias.astype(of_weight))
    rows = np.arange(20)
    assert placed.at(rows).dtype == plain.at(rows).dtype == np.result_type(of_weight, of_features)
    np.testing.assert_allclose(placed.at(rows), plain.at(rows), rtol=0, atol=1e-4)


class Full(OnDevice):
    """A device that takes so many arrays, and no more."""

    def __init__(self, torch: Any, room: int) -> None:
        super().__init__(torch, "cpu")
        self.name = "torch 2 on cuda:0"
        self.room = room

    def put(self, array: Any) -> Any:
        self.room -= 1
        if self.room < 0:
            raise RuntimeError("CUDA out of memory\nCompile with ...")
        return super().put(array)


@pytest.mark.parametrize("command", ["calibrate", "study"])
def test_a_device_that_is_full(
    command: str, torch: Any, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {
        "calibrate": {"output": tmp_path / "o.onnx", "search": "sparse", "map": "ts"},
        "study": {"only": ["members"], "repeats": 2},
    }[command]
    monkeypatch.setattr(opening, "placement_of", lambda *_: Full(torch, 5))
    with pytest.raises(DeviceError, match="CUDA out of memory"):
        with_options(getattr(tna_onnx, command), small.model, small.calib, eval=small.test, **words)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("memory", "free"), [(None, 700), (500, 400), (50, 0)])
def test_a_limit_on_the_device_is_kept(memory: int | None, free: int) -> None:
    fake = _FakeCuda(1)
    fake.device = lambda name: types.SimpleNamespace(type="cuda")  # type: ignore[assignment]
    fake.cuda.mem_get_info = lambda device: (700, 1000)
    fake.cuda.memory_allocated = lambda device: 100
    assert OnDevice(fake, "cuda:0", memory)._free() == free
