"""Opened tasks, results and scores that several tests of this folder start from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from scipy.special import log_softmax

import tna_onnx
from tests.conftest import Small
from tests.support import outputs_of, with_options
from tna_onnx.data.options import Data
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.job import Job, Task
from tna_onnx.pipeline.methods import Method
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.progress import silent
from tna_onnx.results.report import Report
from tna_onnx.search.candidates import Candidate


def job_of(small: Small, model: Any = None, calib: Any = None, held_out: Any = None, **fields: Any) -> Job:
    """Ask for a recalibration, by default of the small model on its own data with search none."""
    data = Data(small.calib if calib is None else calib)
    test = None if held_out is None else Data(held_out)
    fields.setdefault("settings", Settings(search="none"))
    return Job(model or small.model, data, test, device="cpu", **fields)


def opened(small: Small, model: Any = None, calib: Any = None, **fields: Any) -> Task:
    """Open what `job_of` asks for."""
    return open_task(job_of(small, model, calib, **fields), silent)


def recalibrated(proto: onnx.ModelProto, data: Any, folder: Path, **options: Any) -> tuple[Report, Path]:
    """Save a model as m.onnx and calibrate it, without a search if none is asked for; o.onnx proves to be intact."""
    model, new = folder / "m.onnx", folder / "o.onnx"
    onnx.save(proto, model)
    words = {"search": "none", "device": "cpu", "output": new, **options}
    report = with_options(tna_onnx.calibrate, model, data, **words)
    assert tna_onnx.verify(model, new).intact
    return report, new


def with_settings(task: Task, **fields: Any) -> Task:
    """Return a task that was asked for with other settings."""
    return replace(task, job=replace(task.job, settings=replace(task.settings, **fields)))


def few(path: Path, samples: int = 300) -> dict[str, NDArray[Any]]:
    """Return the first samples of an .npz file."""
    with np.load(path) as arrays:
        return {name: values[:samples] for name, values in arrays.items()}


def of_logits(small: Small) -> Task:
    """Open the small model with logits of its calibration data that were computed before: nothing has features."""
    with np.load(small.calib) as arrays:
        (logits,) = outputs(small.model, arrays["x"])
        return opened(small, calib={"logits": logits, "labels": arrays["labels"]})


def outcome_of(
    task: Task, fitted: CalibrationMap | None = None, weight: NDArray[Any] | None = None, angle: float = 0.0
) -> Outcome:
    """Return a result with a given map and weight; by default those of the input."""
    chosen = task.weight if weight is None else weight
    before = task.logits(task.weight).scores()
    candidates = [Candidate(0.0, 1, 0.0, before)]
    if angle:
        candidates.append(Candidate(angle, 10, 5.0, task.logits(chosen).scores(), weight=weight))
    method = Method(tilted=angle > 0, map=fitted.name if fitted else "none")
    return Outcome(tuple(candidates), candidates[-1], chosen, method, fitted, before, task.logits(chosen))


def outputs(model: Path | onnx.ModelProto, x: NDArray[Any]) -> list[NDArray[Any]]:
    """Run a model by itself and return all its outputs."""
    return [np.asarray(each) for each in outputs_of(model, x).values()]


def nll(logits: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Return the mean negative log-likelihood of (N, C) logits."""
    return float(-np.mean(log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(labels)), labels]))


def probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the softmax of (N, C) logits, straight from its definition; for logits of moderate size."""
    powers = np.exp(np.asarray(logits, np.float64))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def scores_of(confidence: list[float], hit: list[bool]) -> SampleScores:
    """Return scores of which only confidence and hit mean anything."""
    zeros = np.zeros(len(hit), np.float32)
    return SampleScores(np.float32(confidence), np.array(hit), zeros, zeros)
