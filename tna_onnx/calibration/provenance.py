"""What the written file says about itself: entries of metadata_props, without the prefix `tna_onnx.`."""

from __future__ import annotations

import json
from importlib.metadata import version

from tna_onnx._version import __version__
from tna_onnx.calibration.outcome import Outcome
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.task import Task
from tna_onnx.data.digest import sample_digests
from tna_onnx.data.leaks import sketch_of
from tna_onnx.data.positions import PositionSource
from tna_onnx.runtime import runtime_version
from tna_onnx.runtime.session import CUDA

__all__ = ["provenance_entries", "versions"]


def provenance_entries(task: Task, settings: Settings, outcome: Outcome) -> dict[str, str]:
    """Return how the file was made; no time, no path: the same run writes the same bytes."""
    recipe = task.source.recipe()
    entries: dict[str, object] = {
        "version": __version__,
        "method": outcome.label,
        "anchor": settings.anchor,
        "search": settings.resolved_search,
        "map": outcome.map,
        "angle_degrees": outcome.chosen.angle,
        # 0 stands for the limit of many; the file has the word of the command line
        "ensemble_size": outcome.chosen.ensemble_size or "inf",
        "antithetic": settings.antithetic,
        "alpha": settings.alpha,
        "beta": settings.beta,
        "theta_s": settings.theta_s,
        "objective": settings.objective,
        "n_t": settings.n_t,
        "max_accuracy_drop": settings.max_accuracy_drop,
        "bins": settings.bins,
        "seed": settings.seed,
        **outcome.parameters,
        "source_sha256": task.model.sha256,
        "calibration_sha256": task.source.digest(),
        "calibration_samples": len(task.source),
        **_positions(task),
        # a few digests of single samples: they tell these data in another order, and a part of them
        "calibration_sketch": sketch_of(sample_digests(task.source)),
        "calibration_form": task.calibration.samples.form,
        **({"preprocessing": recipe} if recipe else {}),
        **_advice(outcome),
        # on the CPU there is no such choice
        **({"tf32": "as-deployed" if task.tf32 else "off"} if task.provider == CUDA else {}),
        **task.class_output.provenance,
        "output_kind": task.class_output.kind,
    }
    # `metadata_props` hold texts only
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}


def _advice(outcome: Outcome) -> dict[str, str]:
    """Say what the file should not go through: its map compares features with those of the network as it is."""
    fitted = outcome.fitted
    if fitted is None or not fitted.needs_features or fitted.folded() is not None:
        return {}
    return {"quantization": "quantise the source and calibrate the result: this map reads features as they are"}


def _positions(task: Task) -> dict[str, object]:
    """Return what was calibrated where a sample has several predictions: its labelled positions, each a sample."""
    source = task.source
    if not isinstance(source, PositionSource):
        return {}
    return {"positions": "last" if source.flat is None else "labelled", "position_samples": len(source.owners)}


def versions() -> dict[str, str]:
    """Return the versions of what computed the numbers."""
    return {
        "tna-onnx": __version__,
        "onnx": version("onnx"),
        "onnxruntime": runtime_version(),
        "numpy": version("numpy"),
    }
