"""Head finding on models of real exporters and tools, against the weight in the framework that made them."""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.builders import small_model
from tests.conftest import ROOT
from tests.corpus import ALL, Case, Unavailable, mismatch, outcome

# Seconds each in the newer exporter of torch; the same models are here by the older one, or in another opset.
TWINS = re.compile(r"torch-dynamo/(?!default/linear$)|transformers/dynamo/(?!bert$)|two-stage/dynamo/(?!norm$)")


def _marked(case: Case) -> Any:
    return pytest.param(case, marks=[pytest.mark.slow] if TWINS.match(case.name) else [], id=case.name)


@pytest.mark.parametrize("case", [_marked(case) for case in ALL])
def test_head_is_the_one_of_the_source_model(case: Case, tmp_path: Path) -> None:
    for module in case.needs:
        pytest.importorskip(module)
    try:
        result, seen = outcome(case, tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert result == ("found right" if case.weight is not None else "refused rightly"), f"{result}: {seen}"


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(case.name for case in ALL).items() if count > 1] == []


def test_importing_the_corpus_imports_no_framework() -> None:
    heavy = ("keras", "onnxruntime", "onnxsim", "onnxslim", "skl2onnx", "sklearn", "torch", "transformers")
    code = f"import sys, tests.corpus; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_mismatch_knows_one_positive_factor() -> None:
    truth = np.random.default_rng(0).standard_normal((3, 4))
    assert mismatch(2.5 * truth, truth) < 1e-15
    assert mismatch(-truth, truth) == np.inf
    assert mismatch(truth.T, truth) == np.inf
    assert mismatch(truth * [[1], [1], [1.1]], truth) > 0.01
    assert mismatch(truth[[1, 0, 2]], truth) > 0.1
    assert mismatch(np.where(truth == truth[0, 0], np.nan, truth), truth) == np.inf


_WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def _plain(folder: Path) -> Path:
    plain = small_model(
        [helper.make_node("Gemm", ["x", "w"], ["logits"], name="head", transB=1)],
        inputs={"x": ["N", 3]},
        outputs={"logits": ["N", 2]},
        tensors={"w": _WEIGHT},
    )
    onnx.save(plain, folder / "m.onnx")
    return folder / "m.onnx"


def test_every_outcome_can_happen(tmp_path: Path) -> None:
    case = Case("plain", "form", _plain, lambda: 3 * _WEIGHT)

    def result(**changes: object) -> str:
        return outcome(replace(case, **changes), tmp_path)[0]

    assert result() == "found right"
    assert result(weight=lambda: _WEIGHT[::-1]) == "found wrong"
    assert result(weight=None, reason="sigmoid") == "found wrong"
    assert result(choose={"node": "other"}) == "refused wrongly"
    assert result(weight=None, reason="sigmoid", choose={"node": "other"}) == "refused wrongly"
    assert result(weight=None, reason="NO linear head", choose={"node": "other"}) == "refused rightly"
    assert result(choose={"unknown": "x"}) == "exception"
