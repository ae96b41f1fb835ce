"""A new bias for each class, with a new weight: what comes out of ONNX Runtime, wherever a tensor holds it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.graph.rewriting import assert_computes, drawn, sizes, write_both
from tests.graph.samples import CASES, Builder, Sample, assert_gives, features_of, run
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import load_model

# heads without a bias, or with one number for all classes
WITHOUT = {
    *(name for name in CASES if re.fullmatch(r"gemm .* (None|\(\)|\(1,\))", name)),
    "gemm with an empty bias",
    "matmul, bias first None",
}
HOLDING = {name: build for name, build in CASES.items() if name not in WITHOUT}


@pytest.mark.parametrize("name", CASES)
def test_a_head_holds_a_bias_where_there_is_one_a_class(name: str, tmp_path: Path) -> None:
    model = CASES[name]().write(tmp_path)
    head = choose_head(model)
    assert head.holds_bias == (name in HOLDING)
    if not head.holds_bias:
        with pytest.raises(ValueError, match="no place for one bias a class"):
            head.bias_as_read(head.bias)


@pytest.mark.parametrize("build", HOLDING.values(), ids=HOLDING)
def test_weight_and_bias_of_every_model(build: Callable[[], Sample], tmp_path: Path) -> None:
    sample = build()
    model = sample.write(tmp_path)
    head = choose_head(model)
    weight, bias = drawn(head)
    path, changed, added = write_both(model, weight, bias)
    assert head.stored_bias is not None
    assert changed == {head.stored_weight.name, head.stored_bias.name}
    assert not added

    again = choose_head(load_model(path))
    np.testing.assert_array_equal(again.bias, head.new_bias_as_written(bias))
    np.testing.assert_array_equal(again.weight, head.as_written(weight))
    x = sample.inputs(7)
    assert_computes(path, sample, x, features_of(sample, model, x), weight, bias)


# --- further places for a bias


def test_a_bias_that_others_read_stays_and_the_head_gets_its_own(tmp_path: Path) -> None:
    b = Builder()
    b.linear("y")
    b.node("Neg", "bias", out="other")
    b.node("Neg", "weight", out="third")
    sample = b.sample({"y": "logits", "other": "the bias", "third": "the weight"}, bias_scale=1.0)
    model, x = sample.write(tmp_path), sample.inputs(5)
    weight, bias = drawn(choose_head(model))
    path, changed, added = write_both(model, weight, bias)
    assert (changed, added) == (set(), {"tna_onnx/weight", "tna_onnx/bias"})
    y, other, third = run(path, ["y", "other", "third"], x)
    np.testing.assert_array_equal(other, -b.bias)
    np.testing.assert_array_equal(third, -b.weight)
    z = features_of(sample, model, x)
    assert_gives(y, "logits", z @ weight.astype(np.float64).T + bias, sizes(z, weight, bias), "float32")
