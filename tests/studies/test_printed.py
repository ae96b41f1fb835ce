"""Algorithm 1 as printed: against explicit n x n matrices, and the search against all of its candidates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from tests.studies.problems import problem
from tests.support import ece
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.search.candidates import SearchSettings
from tna_onnx.studies.geometry import expected_angle
from tna_onnx.studies.recalibrations import MEMBERS, search_printed, walk


def test_a_walk_is_a_product_of_rotation_matrices() -> None:
    weight = np.random.default_rng(0).standard_normal((3, 6))
    walked = walk(weight, 2, TiltParameters(), np.random.default_rng(7), 12, every=4)
    stops = [(s.rotations, s.tilted.copy(), s.angles) for s in walked]
    assert [rotations for rotations, _, _ in stops] == [4, 8, 12]
    rng = np.random.default_rng(7)
    matrices = [np.eye(6), np.eye(6)]
    for _, tilted, angles in stops:
        first = rng.integers(0, 6, (4, 2))
        second = (first + rng.integers(1, 6, (4, 2))) % 6
        turn = 0.9 * rng.beta(5, 1, (4, 2))
        for k in range(4):
            for d in range(2):
                i, j, t = first[k, d], second[k, d], turn[k, d]
                rotation = np.eye(6)
                rotation[[i, j], [i, j]] = math.cos(t)
                rotation[i, j] = -math.sin(t)
                rotation[j, i] = math.sin(t)
                matrices[d] = rotation @ matrices[d]
        for d in range(2):
            expected = matrices[d] @ weight.T
            assert np.allclose(tilted[d], expected, atol=1e-12)
            cosines = np.sum(weight.T * expected, axis=0) / np.sum(weight.T**2, axis=0)
            assert np.allclose(angles[d], np.arccos(cosines), atol=1e-6)


@pytest.mark.parametrize(("theta_s", "alpha", "beta"), [(0.9, 5, 1), (1.5, 1, 1), (0.5, 2, 3)])
def test_the_expectation_is_that_of_the_integral(theta_s: float, alpha: float, beta: float) -> None:
    cosine = integrate.quad(lambda tau: math.cos(theta_s * tau) * stats.beta.pdf(tau, alpha, beta), 0, 1)[0]
    expected = math.degrees(math.acos((1 - 2 / 50 * (1 - cosine)) ** 40))
    assert expected_angle(50, 40, TiltParameters(alpha, beta, theta_s)) == pytest.approx(expected, abs=1e-4)


def test_the_search_takes_the_least_ece_of_all_stops_and_the_original() -> None:
    data = problem(n=40)
    seen: list[float] = []

    def score(weight: np.ndarray) -> SampleScores | None:
        scores = data.logits(data.calibration, weight).scores()
        seen.append(ece(scores))
        # one that cannot be scored is never taken
        return None if len(seen) == 3 else scores

    settings = SearchSettings(seed=3, tilt=TiltParameters(n_t=50))
    found, index = search_printed(data.weight, score, settings)
    assert found.candidates == len(seen) == 1 + settings.tilt.max_rotations(40) // 50
    seen[2] = math.inf
    assert seen[index] == min(seen)
    # the average of the members at that stop, made again
    stops = walk(data.weight, MEMBERS, settings.tilt, np.random.default_rng(3), 50 * index, 50)
    last = [stop.tilted.copy() for stop in stops][-1]
    assert np.allclose(found.weight, last.mean(axis=0).T, atol=1e-5)


def test_zero_vectors_have_no_angle() -> None:
    weight = np.zeros((3, 8))
    weight[1:] = np.random.default_rng(0).standard_normal((2, 8))
    (stop,) = walk(weight, 1, TiltParameters(), np.random.default_rng(0), 5, 5)
    assert np.isnan(stop.angles[0, 0])
    assert 0 < stop.mrc[0] < 90
