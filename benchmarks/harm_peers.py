"""Calibrators of other libraries, on the probabilities of a problem. A library that is not installed is left out."""

# ruff: noqa: PLC0415 (each of the others is optional)
from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from harm_problems import Problem, probabilities
from numpy.typing import NDArray

__all__ = ["PEERS", "Peer", "installed", "versions_of"]

Fit = Callable[[Problem], NDArray[np.float64]]
"""Fits on the calibration data and returns probabilities of the test data, (N, C)."""


@dataclass(frozen=True)
class Peer:
    """A calibrator of another library.

    Attributes:
        package: distribution that it comes from.
        module: what has to be importable.
        run: fits and applies it.
        classes: most classes that it is given, for the sake of time.
    """

    package: str
    module: str
    run: Fit
    classes: int = 10_000


def installed() -> tuple[dict[str, Peer], dict[str, str]]:
    """Return peers that can run, and the reason for each library that cannot."""
    missing = {peer.package: reason for peer in PEERS.values() if (reason := _missing(peer.module))}
    return {name: peer for name, peer in PEERS.items() if peer.package not in missing}, missing


def _missing(module: str) -> str:
    """Return why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return ""


def versions_of(peers: dict[str, Peer]) -> dict[str, str]:
    """Return the versions of the libraries of some peers."""
    return {package: version(package) for package in sorted({peer.package for peer in peers.values()})}


def _sklearn(method: str) -> Fit:
    def run(problem: Problem) -> NDArray[np.float64]:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
            """A model whose scores are its inputs."""

            def fit(self, x: Any, _y: Any) -> Any:
                self.classes_ = np.arange(x.shape[1])
                return self

            def decision_function(self, x: Any) -> Any:
                return x[:, 1] - x[:, 0] if x.shape[1] == 2 else x

            def predict(self, x: Any) -> Any:
                return x.argmax(1)

        part = problem.calibration
        model = FrozenEstimator(Given().fit(part.logits, part.labels))
        everything = np.arange(len(part.labels))
        # a frozen model is never fitted: all samples are in the one fold that it scores
        calibrated = CalibratedClassifierCV(model, method=method, cv=[(everything, everything)])
        calibrated.fit(part.logits.astype(np.float64), part.labels)
        return np.asarray(calibrated.predict_proba(problem.test.logits.astype(np.float64)), np.float64)

    return run


def _probmetrics(name: str) -> Fit:
    def run(problem: Problem) -> NDArray[np.float64]:
        from probmetrics import calibrators

        fitted = getattr(calibrators, name)().fit(probabilities(problem.calibration.logits), problem.calibration.labels)
        return np.asarray(fitted.predict_proba(probabilities(problem.test.logits)), np.float64)

    return run


def _netcal(module: str, name: str) -> Fit:
    def run(problem: Problem) -> NDArray[np.float64]:
        calibrator = getattr(importlib.import_module(module), name)()
        given = [probabilities(part.logits) for part in (problem.calibration, problem.test)]
        binary = given[0].shape[1] == 2
        if binary:  # it takes the probability of the second class alone
            given = [p[:, 1] for p in given]
        calibrator.fit(given[0], problem.calibration.labels)
        p = np.asarray(calibrator.transform(given[1]), np.float64)
        return np.stack([1 - p, p], axis=1) if binary else p

    return run


PEERS: dict[str, Peer] = {
    "scikit-learn sigmoid": Peer("scikit-learn", "sklearn.frozen", _sklearn("sigmoid")),
    "scikit-learn isotonic": Peer("scikit-learn", "sklearn.frozen", _sklearn("isotonic")),
    "scikit-learn temperature": Peer("scikit-learn", "sklearn.frozen", _sklearn("temperature")),
    "probmetrics TS": Peer("probmetrics", "probmetrics.calibrators", _probmetrics("TemperatureScalingCalibrator")),
    "probmetrics SVS": Peer("probmetrics", "probmetrics.calibrators", _probmetrics("SVSCalibrator")),
    "probmetrics SMS": Peer("probmetrics", "probmetrics.calibrators", _probmetrics("SMSCalibrator")),
    "probmetrics default": Peer("probmetrics", "probmetrics.calibrators", _probmetrics("LogisticCalibrator")),
    "netcal TS": Peer("netcal", "netcal.scaling", _netcal("netcal.scaling", "TemperatureScaling")),
    # half a minute a fit at 100 classes
    "netcal logistic": Peer("netcal", "netcal.scaling", _netcal("netcal.scaling", "LogisticCalibration"), classes=10),
}
