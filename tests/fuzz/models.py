"""Damaged models through load, head finding, rewriting and the runtime.

What may be raised: `TnaError`, with a text. What is written has the source's own weight as the new one: it must pass
the check of `calibrate`, and compute what the source does.
"""

from pathlib import Path
from random import Random

import numpy as np
import onnxruntime

from tests.builders import calibration_entries
from tests.fuzz import children
from tests.fuzz.children import OUTCOMES
from tests.fuzz.mutations import mutated
from tests.graph.samples import CASES, FEATURES
from tna_onnx.graph.head import choose_head, find_heads
from tna_onnx.graph.load import load_model
from tna_onnx.graph.save import pending
from tna_onnx.pipeline.change import write_change
from tna_onnx.pipeline.checking import check_file
from tna_onnx.pipeline.steps import Change

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
    check(data_of(k, seed), folder)


def check(data: bytes, folder: Path) -> None:
    """Load, find, rewrite, save, and compare."""
    path = folder / "model.onnx"
    path.write_bytes(data)
    model = load_model(path)
    find_heads(model)
    head = choose_head(model)
    scores = () if head.binary else (head.n_classes,)
    entries = calibration_entries(model, head, angle=10.0)
    rewritten = write_change(model, head, Change(weight=np.array(head.weight), shape=scores), entries)
    with pending(model, rewritten.proto, folder / "new.onnx") as new:
        check_file(model, new)
    assert _same_results(path, folder / "new.onnx"), "results"


def _same_results(old: Path, new: Path) -> bool:
    """Whether a file computes what its source does, as far as ONNX Runtime can run that."""
    try:
        expected = _run(old)
    except Exception:  # noqa: BLE001 - a damaged source, which calibrate would refuse
        return True
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in zip(expected, _run(new), strict=True)
    )


def _run(path: Path) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    dtypes = {"tensor(float16)": np.float16, "tensor(double)": np.float64}
    feeds = {i.name: np.ones((4, FEATURES), dtypes.get(i.type, np.float32)) for i in session.get_inputs()}
    return [np.asarray(value) for value in session.run(None, feeds)]
