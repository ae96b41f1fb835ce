"""The stages of a run, as its log tells them, where a run ends early, and the settings that it goes by."""

import gc
import logging
import re
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

import tna_onnx
from tests.conftest import Small
from tests.pipeline.samples import few, job_of
from tests.support import TILTED, with_options
from tna_onnx.errors import CheckFailed, UnsupportedModel, UsageError
from tna_onnx.extraction import opened_samples as given
from tna_onnx.extraction import sessions
from tna_onnx.maps import MAPS
from tna_onnx.pipeline.recalibrate import recalibrate
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.progress import silent
from tna_onnx.results.report import Report
from tna_onnx.runtime import Session, providers


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {(record.name, record.levelno) for record in caplog.records} <= {("tna_onnx", logging.INFO)}
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tna_onnx")


def run(small: Small, tmp_path: Path, **fields: Any) -> Report:
    return recalibrate(job_of(small, calib=few(small.calib), output=tmp_path / "o.onnx", **fields), silent)


def test_an_accuracy_that_is_not_the_expected_one_ends_before_the_search(
    small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = few(small.calib)
    data["labels"] = (data["labels"] + 1) % 5
    job = job_of(small, calib=data, output=tmp_path / "o.onnx")
    object.__setattr__(job.calib, "expect_accuracy", 90.0)
    with pytest.raises(CheckFailed, match="90"):
        recalibrate(job, silent)
    assert [line.split(":")[0] for line in lines_of(caplog)] == ["open", "collect"]


def test_a_weight_that_cannot_be_tilted_is_a_refusal_of_the_model(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedModel("a class vector is zero")

    monkeypatch.setattr(Strategy, "run", refuse)
    with pytest.raises(UnsupportedModel, match="head 'head': a class vector is zero; use --search none"):
        run(small, tmp_path, settings=Settings())


# ---- Settings: what they refuse, and how they reach the search


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"search": "dense"}, "search 'dense' is not known; expected auto, none, sparse, complete"),
        ({"map": "tss"}, f"map 'tss' is not known; expected auto, none, {', '.join(MAPS)}"),
        ({"objective": "ECE"}, "objective 'ECE' is not known; expected ece, adaece, nll, brier"),
        ({"ets_loss": "mse"}, "ets_loss 'mse' is not known"),
        ({"method": "best"}, "method 'best' is not known; expected auto, tna"),
        ({"predictions": "same"}, "predictions 'same' is not known; expected auto, change, keep"),
        ({"quantized_head": "int8"}, "quantized_head 'int8' is not known"),
        ({"search": "none", "map": "none"}, "changes nothing"),
        ({"predictions": "keep", "method": "tna"}, "--predictions keep: a tilted weight (--search sparse) can change"),
        ({"predictions": "keep", "search": "complete", "map": "ts"}, "(--search complete) can change"),
        ({"bins": 1.5}, "bins must be a whole number, got 1.5"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"seed": -1}, "seed must be at least 0; got -1"),
        ({"angle_step": 90.0}, "angle_step is out of its range: 90.0"),
        ({"alpha": "5"}, "alpha must be a number, got '5'"),
        ({"theta_s": 0.0}, "theta_s"),
        ({"max_accuracy_drop": 101}, "max_accuracy_drop must be from 0 to 100"),
        ({"ensemble_size": 0}, "ensemble_size must be at least 1, auto or inf, got 0"),
        ({"ensemble_size": "many"}, "ensemble size 'many' is not known"),
        ({"ensemble_size": 2.5}, "ensemble_size must be a whole number"),
        ({"confidence_level": 100}, "confidence_level must be from 50 to 99.9, in per cent; got 100"),
    ],
)
def test_what_cannot_be_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Settings(**words)


@pytest.mark.parametrize(
    ("words", "search", "map_"),
    [
        ({}, "auto", "auto"),
        ({"method": "tna"}, "sparse", "ts"),
        ({"method": "tna", "search": "none"}, "none", "ts"),
        ({"method": "tna", "search": "complete"}, "complete", "ts"),
        ({"method": "tna", "map": "none"}, "sparse", "none"),
        ({"method": "tna", "map": "bias"}, "sparse", "bias"),
        ({"search": "complete"}, "complete", "ts"),
        ({"search": "sparse"}, "sparse", "auto"),
        ({"map": "refit"}, "auto", "refit"),
    ],
)
def test_the_method_fills_in_what_is_not_said(words: dict[str, Any], search: str, map_: str) -> None:
    settings = Settings(**words)
    assert (settings.resolved_search, settings.resolved_map) == (search, map_)
    # what was asked for is what reports keep
    for name in ("method", "search", "map"):
        assert settings.recorded[name] == words.get(name, "auto")


@pytest.mark.parametrize(
    ("objective", "asked", "loss"),
    [
        ("nll", "auto", "nll"),
        ("ece", "auto", "squared"),
        ("brier", "auto", "squared"),
        ("nll", "squared", "squared"),
        ("ece", "nll", "nll"),
    ],
)
def test_maps_are_fitted_by_the_objective(objective: Any, asked: Any, loss: str) -> None:
    expected = {"ets_loss": loss, "objective": objective, "bins": 15}
    assert Settings(objective=objective, ets_loss=asked).fit_options == expected


# --- A run opens its source model once, and sends every sample through the network once


class Sessions:
    """Counts the sessions that are opened, by what they are opened on, and the samples that each has run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.samples: Counter[str] = Counter()
        for module, kind in ((sessions, "source"), (given, "written")):
            monkeypatch.setattr(module, "open_session", self._counted(module.open_session, kind))

    def _counted(self, real: Any, kind: str) -> Any:
        def opened(*words: Any, **named: Any) -> Session:
            session: Session = real(*words, **named)
            self.opened.append(kind)
            compute = session._compute

            def counted(outputs: Any, feeds: Any) -> Any:
                self.samples[kind] += len(next(iter(feeds.values())))
                return compute(outputs, feeds)

            session._compute = counted  # type: ignore[method-assign]
            return session

        return opened


def test_with_held_out_data(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "allowed_cores", lambda: 2)
    count = Sessions(monkeypatch)
    with_options(
        tna_onnx.calibrate,
        small.model,
        small.calib,
        eval=small.test,
        output=tmp_path / "o.onnx",
        details=True,
        **TILTED,
    )
    # with all cores for a batch, then with some of them for each of several
    assert count.opened == ["source", "source", "written"]
    # both data sets, once: the collection begins with the batch that checked the head, of which three samples are
    # run alone and all in parts; another batch from all over the data, and that in parts
    assert count.samples == {"source": 1500 + 1500 + 3 + 64 + 2 * 64, "written": 512}


@pytest.mark.slow
def test_one_session_is_open_at_a_time(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device two may not fit beside each other; a second output has both files run."""
    monkeypatch.setattr(providers, "allowed_cores", lambda: 2)
    alive: weakref.WeakSet[Session] = weakref.WeakSet()
    most = 0
    for module in (sessions, given):
        real = module.open_session

        def opened(*words: Any, real: Any = real, **named: Any) -> Session:
            nonlocal most
            gc.collect()
            assert not alive
            session: Session = real(*words, **named)
            alive.add(session)
            most += 1
            return session

        monkeypatch.setattr(module, "open_session", opened)
    proto = onnx.load(small.model)
    proto.graph.node.append(onnx.helper.make_node("ArgMax", [proto.graph.output[0].name], ["label"], axis=1))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("label", onnx.TensorProto.INT64, None))
    onnx.save(proto, tmp_path / "two.onnx")
    words = {**TILTED, "output_name": proto.graph.output[0].name}
    with_options(
        tna_onnx.calibrate, tmp_path / "two.onnx", small.calib, eval=small.test, output=tmp_path / "o.onnx", **words
    )
    # to check and to collect, the written file, and the source with all its outputs
    assert most == 4
