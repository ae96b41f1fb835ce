"""Damaged models with a new weight and bias: the checker, ONNX Runtime and ONNX's own evaluator must agree on the file.

What may be raised: `TnaError`. What is written passes the check of `calibrate`, and where the head is linear its logits
are those of the new weight. Where the evaluator gives the source's outputs as ONNX Runtime does, so it does the file's.
"""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.builders import calibration_entries
from tests.fuzz.heads import SAMPLES, assert_linear, inputs
from tests.fuzz.models import data_of
from tests.graph.rewriting import drawn
from tna_onnx.data import open_source
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.head_check import check_readout, class_logits
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.save import pending
from tna_onnx.pipeline.change import write_change
from tna_onnx.pipeline.checking import check_file
from tna_onnx.pipeline.steps import Change
from tna_onnx.runtime import Device


def case(k: int, seed: int, folder: Path) -> None:
    """Run one case by its number."""
    path = folder / "model.onnx"
    path.write_bytes(data_of(k, seed))
    model = load_model(path)
    head = choose_head(model)
    opened = OpenModel(model, head, Device("cpu"))
    feeds = inputs(opened.inputs, Random(k), 1.0)
    source = open_source({**feeds, "labels": np.arange(SAMPLES) % head.n_classes}, opened.inputs, head.n_classes)
    probed = check_readout(opened, head, opened.session, source, SAMPLES)
    found = probed.readout
    assert isinstance(found, Head)
    weight, bias = drawn(found)
    # a head without a bias has no place for one
    change = Change(weight=weight, bias=bias if found.holds_bias else None, shape=probed.logits_shape)
    rewritten = write_change(model, found, change, calibration_entries(model, found, angle=10.0))
    new = folder / "new.onnx"
    with pending(model, rewritten.proto, new) as written:
        check_file(model, written)
    assert_evaluated_alike(path, new, feeds)
    if found.linear:
        result = load_model(new)
        again = OpenModel(result, choose_head(result), Device("cpu"))
        features, raw = again.session.run([again.main, again.readout.logits], feeds)
        expected = again.readout
        assert isinstance(expected, Head)
        np.testing.assert_allclose(expected.weight, weight, rtol=1e-2, atol=1e-2)
        assert_linear(expected, features, class_logits(result, expected, raw, SAMPLES))


def assert_evaluated_alike(old: Path, new: Path, feeds: dict[str, Any]) -> None:
    """Compare two runtimes on the new file, if they agree on the old one."""
    try:
        agreed = _apart(old, feeds) < 1e-3
    except Exception:  # noqa: BLE001 - a model that the evaluator or all of ONNX Runtime cannot run
        return
    if agreed:
        assert _apart(new, feeds) < 1e-2, "ONNX Runtime and the reference evaluator differ"


def _apart(path: Path, feeds: dict[str, Any]) -> float:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    ran = session.run(None, feeds)
    with np.errstate(all="ignore"):
        evaluated = ReferenceEvaluator(onnx.load(path)).run(None, feeds)
    apart = 0.0
    for a, b in zip(ran, evaluated, strict=True):
        size = 1 + np.abs(np.asarray(a, np.float64)).max(initial=0)
        apart = max(apart, float((np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)) / size).max(initial=0)))
    return apart
