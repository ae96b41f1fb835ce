"""`MAPS` names every map, and what a map says about itself is true."""

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from tests.maps.samples import reduce_of, sample
from tna_onnx.errors import DataError
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap, Folding, apply_map

Array = NDArray[Any]


def fitted(name: str) -> tuple[CalibrationMap, Array, Array]:
    """A map of this name, fitted, with the logits and features that it was fitted on."""
    logits, labels, features = drawn(name)
    return MAPS[name].fit(reduce_of(logits, labels, features)), logits, features


def drawn(name: str, classes: int = 5) -> Any:
    """Return samples of what a map is for: two classes, or labels that hold or not by themselves."""
    logits, labels, features = sample(classes=2 if MAPS[name].binary else classes, size=400)
    if not MAPS[name].for_classes:
        labels = (np.random.default_rng(0).random(logits.shape) < 1 / (1 + np.exp(-logits / 3))).astype(np.int64)
    return logits, labels, features


def probabilities(name: str, logits: Array) -> Array:
    """Return the softmax of logits, or the sigmoid where each label has a logit of its own."""
    return special.softmax(logits, axis=1) if MAPS[name].for_classes else special.expit(logits)


def test_every_map_has_a_rank_of_its_own() -> None:
    ranks = [MAPS[name].rank for name in MAPS]
    assert len({*ranks}) == len(ranks)
    assert min(ranks) == MAPS["ts"].rank > 0


@pytest.mark.parametrize("name", MAPS)
class TestFacts:
    def test_options_are_keywords_whose_default_is_the_first_word(self, name: str) -> None:
        defaults = getattr(MAPS[name].fit, "__kwdefaults__")  # noqa: B009 - a bound method has it, its type does not
        assert {*MAPS[name].options, "start"} == {*defaults}
        for option, words in MAPS[name].options.items():
            assert not words or words[0] == defaults[option]

    def test_the_fit_of_chunks_is_the_fit_of_the_whole(self, name: str) -> None:
        data = drawn(name)
        whole, *cut = (MAPS[name].fit(reduce_of(*data, cuts=cuts)) for cuts in ((), (1,), (100, 101, 350)))
        expected = apply_map(whole, data[0], data[2])
        for one in cut:
            # sums in another order, and where Newton's steps then stop: 1e-5 nats for a refit in float32
            atol = 5e-3 if name == "refit" else 1e-5
            found = apply_map(one, data[0], data[2])
            np.testing.assert_allclose(probabilities(name, found), probabilities(name, expected), rtol=0, atol=atol)

    def test_what_readers_see_goes_through_json(self, name: str) -> None:
        brief = fitted(name)[0].brief
        assert json.loads(json.dumps(brief)) == brief

    def test_order_is_kept(self, name: str) -> None:
        one, logits, features = fitted(name)
        if one.keeps_order:
            mapped = apply_map(one, logits, features)
            if not MAPS[name].for_classes:
                np.testing.assert_array_equal(mapped > 0, logits > 0)
            else:
                np.testing.assert_array_equal(mapped.argmax(axis=1), logits.argmax(axis=1))

    def test_a_folded_head_gives_what_the_formula_gives(self, name: str) -> None:
        one, logits, features = fitted(name)
        folding = one.folded()
        assert (folding is not None) == one.foldable
        if folding is not None:
            # a head whose logits these are: its features are the logits themselves, and those of the map beside them
            width = logits.shape[1]
            head = np.hstack([np.eye(width), np.zeros((width, features.shape[1]))])
            delta = folding.delta
            if delta is not None:
                delta = np.hstack([np.zeros((width, width)), delta])
            folding = Folding(folding.scale, folding.shift, delta)
            weight, bias = folding.weight(head), folding.bias(np.zeros(width))
            np.testing.assert_allclose(
                np.hstack([logits, features]) @ weight.T + bias, apply_map(one, logits, features), rtol=1e-9, atol=1e-9
            )

    def test_other_numbers_of_classes_are_refused_where_it_is_for_two(self, name: str) -> None:
        logits, labels, features = sample(size=400)
        if MAPS[name].binary:
            with pytest.raises(DataError, match=f"{name}: this map is for two classes"):
                MAPS[name].fit(reduce_of(logits, labels, features))
        else:
            for data in (drawn(name), drawn(name, classes=2)):
                assert np.all(np.isfinite(apply_map(MAPS[name].fit(reduce_of(*data)), data[0], data[2])))

    def test_features_are_read_only_where_it_says_so(self, name: str) -> None:
        one, logits, features = fitted(name)
        if one.needs_features:
            assert not np.array_equal(apply_map(one, logits, features), apply_map(one, logits, features[::-1]))
        else:
            np.testing.assert_array_equal(apply_map(one, logits), apply_map(one, logits, features))
