"""Damaged models through load, head finding, rewriting and the runtime.

What may be raised: `TnaError`, with a text. What is written passes the check of `calibrate`. With the source's own
weight it computes what the source does, with another one what that gives. A head that is taken for linear gives the
logits of the graph by `features @ weight.T + bias`, on samples of another scale too. Where ONNX's own evaluator gives
the source's outputs as ONNX Runtime does, so it does the file's.
"""

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.builders import calibration_entries
from tests.data.samples import open_source
from tests.fuzz import children
from tests.fuzz.children import OUTCOMES
from tests.fuzz.mutations import mutated
from tests.graph.rewriting import drawn
from tests.graph.samples import CASES
from tna_onnx.data.source import InputSpec
from tna_onnx.errors import TnaError, UnsupportedModel
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.head_check import CheckedHead, check_readout, class_logits
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.save import pending
from tna_onnx.graph.scores import choose_head, find_heads
from tna_onnx.pipeline.checking import check_file
from tna_onnx.pipeline.record import Change, write_change
from tna_onnx.runtime import Device

SAMPLES = 8
_MAX_VALUES = 10**6
_NAMES = tuple(sorted(CASES))


def data_of(case: int, seed: int) -> bytes:
    """Return the file of one case."""
    random = Random(f"{seed} {case}")
    return mutated(CASES[random.choice(_NAMES)]().proto, random)


def outcome_of(data: bytes, folder: Path) -> str:
    """Run one case; a traceback goes on up."""
    outcome, text = children.outcome_of(lambda: check(data, folder))
    assert outcome in OUTCOMES[:2], text
    return outcome


def case(k: int, seed: int, folder: Path) -> None:
    """Run one case by its number."""
    check(data_of(k, seed), folder, k)


def check(data: bytes, folder: Path, k: int = 0) -> None:
    """Load, find, check, rewrite and compare: what one part refuses is tried by the others all the same."""
    path = folder / "model.onnx"
    path.write_bytes(data)
    model = load_model(path)
    heads, _ = find_heads(model)
    refusals = []
    parts = [lambda: _keep_weight(model, path), lambda: _write_another(model, path, k)]
    for part in (*parts, *(lambda head=head: _check_elsewhere(model, head, k) for head in heads)):
        try:
            part()
        except TnaError as error:
            refusals.append(error)
    if refusals:
        raise next((error for error in refusals if not str(error)), refusals[0])


def _keep_weight(model: Model, path: Path) -> None:
    """Write the head's own weight as the new one."""
    head = choose_head(model)
    change = Change(weight=np.array(head.weight), shape=() if head.binary else (head.n_classes,))
    _write(model, head, change, path.with_name("same.onnx"))
    try:
        feeds = inputs(OpenModel(model, head, Device("cpu")).inputs, Random(0), 1.0)
        expected = _run(path, feeds)
    except Exception:  # noqa: BLE001 - a damaged source, which calibrate would refuse
        return
    for old, new in zip(expected, _run(path.with_name("same.onnx"), feeds), strict=True):
        assert np.allclose(old, new, rtol=1e-4, atol=1e-5, equal_nan=True), "results"


def _write_another(model: Model, path: Path, k: int) -> None:
    """Write a drawn weight and bias; two runtimes must agree on the file, and on what it computes."""
    probed, _, feeds = _probed(model, choose_head(model), k)
    found = probed.readout
    assert isinstance(found, Head)
    weight, bias = drawn(found)
    # a head without a bias has no place for one
    change = Change(weight=weight, bias=bias if found.holds_bias else None, shape=probed.logits_shape)
    new = path.with_name("new.onnx")
    _write(model, found, change, new)
    try:
        agreed = _apart(path, feeds) < 1e-3
    except Exception:  # noqa: BLE001 - a model that the evaluator or all of ONNX Runtime cannot run
        agreed = False
    if agreed:
        assert _apart(new, feeds) < 1e-2, "ONNX Runtime and the reference evaluator differ"
    if found.linear:
        result = load_model(new)
        again = OpenModel(result, choose_head(result), Device("cpu"))
        features, raw = again.session.run([again.readout.main, again.readout.logits], feeds)
        expected = again.readout
        assert isinstance(expected, Head)
        np.testing.assert_allclose(expected.weight, weight, rtol=1e-2, atol=1e-2)
        assert_linear(expected, features, class_logits(result, expected, raw, SAMPLES))


def _check_elsewhere(model: Model, head: Head, k: int) -> None:
    """Samples of another scale than the first batch: what only looked linear there is found out."""
    probed, opened, _ = _probed(model, head, k)
    found = probed.readout
    if isinstance(found, Head) and found.linear:
        features, raw = opened.session.run([head.features, head.logits], inputs(opened.inputs, Random(k), 10.0))
        assert_linear(found, features, class_logits(model, found, raw, SAMPLES))


def _probed(model: Model, head: Head, k: int) -> tuple[CheckedHead, OpenModel, dict[str, np.ndarray]]:
    opened = OpenModel(model, head, Device("cpu"))
    feeds = inputs(opened.inputs, Random(k), 1.0)
    source = open_source({**feeds, "labels": np.arange(SAMPLES) % head.n_classes}, opened.inputs, head.n_classes)
    return check_readout(opened, head, opened.session, source, SAMPLES), opened, feeds


def _write(model: Model, head: Head, change: Change, path: Path) -> None:
    rewritten = write_change(model, head, change, calibration_entries(model, head, angle=10.0))
    with pending(model, rewritten.proto, path) as written:
        check_file(model, written)


def inputs(specs: tuple[InputSpec, ...], random: Random, scale: float) -> dict[str, np.ndarray]:
    """Draw samples for a model's inputs; those that are too large are refused here, not by the package."""
    rng = np.random.default_rng(random.getrandbits(32))
    arrays = {}
    for spec in specs:
        shape = (SAMPLES, *(2 if length is None else length for length in spec.shape[1:]))
        if math.prod(shape) > _MAX_VALUES:
            raise UnsupportedModel("an input that is too large for a test")
        arrays[spec.name] = (scale * rng.standard_normal(shape)).astype(spec.dtype)
    return arrays


def assert_linear(head: Head, features: np.ndarray, logits: np.ndarray) -> None:
    """Hold logits against those of the head, up to one per cent of the sizes of their terms."""
    if head.features_transposed:
        features = features.T
    rows = features.reshape(len(logits), -1).astype(np.float64)
    weight = head.weight.astype(np.float64)
    bias = head.bias.astype(np.float64)
    size = np.abs(rows) @ np.abs(weight).T + np.abs(bias)
    if np.isfinite(size).all() and np.isfinite(logits).all():
        assert (np.abs(rows @ weight.T + bias - logits) <= 0.01 * size + 1e-5).all(), "logits"


def _run(path: Path, feeds: dict[str, np.ndarray]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _apart(path: Path, feeds: dict[str, np.ndarray]) -> float:
    ran = _run(path, feeds)
    with np.errstate(all="ignore"):
        evaluated = ReferenceEvaluator(onnx.load(path)).run(None, feeds)
    apart = 0.0
    for a, b in zip(ran, evaluated, strict=True):
        size = 1 + np.abs(np.asarray(a, np.float64)).max(initial=0)
        apart = max(apart, float((np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)) / size).max(initial=0)))
    return apart
