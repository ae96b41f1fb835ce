"""An engine may send what it is given to other processes: every function and statistic can be pickled."""

import pickle
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tna_onnx.calibration.outcome import Outcome
from tna_onnx.calibration.strategy import Strategy
from tna_onnx.engine import local
from tna_onnx.engine.logits import HeadLogits, Logits
from tna_onnx.engine.other_logits import StoredLogits, TailLogits
from tna_onnx.engine.protocol import Engine
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps import MAPS, maps_of
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.settings import SearchSettings

Array = NDArray[Any]

N, FEATURES, CLASSES = 700, 12, 4
SETTINGS = SearchSettings(angle_step=30.0, ensemble_size=4, max_ensemble_size=32, max_accuracy_drop=0.001)


class Pickling:
    """The local engine behind a wire: functions, chunks and statistics go through pickle."""

    def __init__(self) -> None:
        self.calls = 0

    def sum_chunks(self, of: Callable[..., Any], chunks: Iterable[tuple[Any, ...]]) -> Any:
        return local.sum_chunks(self._sent(of), chunks)

    def map_chunks(self, of: Callable[..., Any], chunks: Iterable[tuple[Any, ...]]) -> Generator[Any, None, None]:
        return local.map_chunks(self._sent(of), chunks)

    def _sent(self, of: Callable[..., Any]) -> Callable[..., Any]:
        self.calls += 1
        there = pickle.dumps(of)

        def run(*chunk: Any) -> Any:
            return pickle.loads(pickle.dumps(pickle.loads(there)(*chunk)))

        return run


class Small(FeatureTable):
    """A store whose chunks are small, so that statistics are merged."""

    def chunks(self, n_classes: int) -> Any:
        for k in range(0, len(self), 256):
            yield self.features[k : k + 256], self.labels[k : k + 256]


@pytest.fixture(scope="module")
def problem() -> tuple[FeatureTable, Array, Array]:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((CLASSES, FEATURES)).astype(np.float32)
    features = rng.standard_normal((N, FEATURES)).astype(np.float32)
    labels = np.argmax(features @ weight.T / 2 + rng.gumbel(size=(N, CLASSES)), axis=1)
    return Small(features, labels, 256), weight, rng.standard_normal(CLASSES).astype(np.float32) / 10


def bits(scores: SampleScores) -> list[bytes]:
    return [values.tobytes() for values in vars(scores).values() if values is not None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "name", "options"),
    [
        *(("none", name, {}) for name in maps_of(2)),
        ("none", "ets", {"ets_loss": "nll"}),
        ("none", "auto", {}),
        ("sparse", "ts", {}),
        ("complete", "aar", {}),
    ],
)
def test_what_is_sent_to_chunks_can_be_pickled(
    problem: tuple[FeatureTable, Array, Array], search: str, name: str, options: dict[str, str]
) -> None:
    store, weight, bias = problem
    if name in MAPS and MAPS[name].binary:
        weight, bias, store = weight[:2], bias[:2], Small(store.features, store.labels % 2, 256)

    def run(engine: Engine) -> tuple[Outcome, SampleScores]:
        strategy = Strategy(
            lambda w: HeadLogits(store, w, bias, engine=engine), weight, search, name, SETTINGS, options=options
        )
        outcome = strategy.run(lambda *_: None)
        return outcome, strategy.cross_fitted(outcome)

    pickling = Pickling()
    one, scores_of_one = run(local)
    other, scores_of_other = run(pickling)
    assert pickling.calls > 0
    assert one.method == other.method
    assert one.fitted is not None
    assert other.fitted is not None
    assert one.fitted.brief == other.fitted.brief  # floats: equal to the bit
    assert [(m, bits(s)) for m, s in one.scores.items()] == [(m, bits(s)) for m, s in other.scores.items()]
    assert [bits(c.scores) for c in one.candidates] == [bits(c.scores) for c in other.candidates]
    assert bits(scores_of_one) == bits(scores_of_other)


def test_every_kind_of_logits_takes_an_engine(problem: tuple[FeatureTable, Array, Array]) -> None:
    store, weight, bias = problem
    values = store.features @ weight.T + bias

    def kinds(engine: Engine) -> list[Logits]:
        return [
            HeadLogits(store, weight, bias, engine=engine),
            TailLogits(store, "z", lambda feed: feed["z"] @ weight.T + bias, CLASSES, engine),
            StoredLogits(Small(values, store.labels), engine),
        ]

    pickling = Pickling()
    for here, there in zip(kinds(local), kinds(pickling), strict=True):
        before = pickling.calls
        np.testing.assert_array_equal(there.predictions(), here.predictions(), strict=True)
        np.testing.assert_array_equal(there.at(np.arange(0, N, 50)), here.at(np.arange(0, N, 50)), strict=True)
        assert bits(there.scores()) == bits(here.scores())
        # of a head, some samples are one product
        assert pickling.calls == before + 3 - isinstance(here, HeadLogits)


def test_a_closure_is_noticed() -> None:
    """The engine of this test refuses what cannot be sent."""
    with pytest.raises((pickle.PicklingError, AttributeError)):
        Pickling().sum_chunks(lambda x: x, [(1,)])
