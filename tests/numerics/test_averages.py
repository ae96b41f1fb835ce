"""Tilt against a literal Algorithm 1 with an explicit n x n matrix R, its properties, and the paper's figures."""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

import tna_onnx
from tests.engine.features_data import MODEL
from tests.support import pairwise
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.numerics import averages as averages_module
from tna_onnx.numerics.averages import Draws, Ensemble, Stops, averages, find_stops, tilted_means
from tna_onnx.numerics.rotations import ClassVectors, Rotations, TiltParameters, levels

Array = NDArray[Any]
PAPER = TiltParameters()
SHAPES = [(3, 2), (1, 5), (4, 3), (10, 8), (2, 33), (40, 24), (7, 64)]


# ---- the oracle ----


@dataclass(frozen=True)
class Draw:
    """One elementary rotation: theta_t, k_1 and k_2 of Algorithm 1."""

    first: int
    second: int
    angle: float


def draws_of(seed: int, path: int, n: int, parameters: TiltParameters, count: int) -> list[Draw]:
    """Replay the first draws of a path: blocks of 16 paths by 64 rotations, each of a counter of its own."""
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    draws: list[Draw] = []
    for column in itertools.count():
        if len(draws) >= count:
            return draws[:count]
        generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, path // 16, column]))
        first = generator.integers(0, n, size=(16, 64))[path % 16].tolist()
        second = generator.integers(0, n - 1, size=(16, 64))[path % 16].tolist()
        if parameters.beta == 1:
            tau = generator.random((16, 64))[path % 16] ** (1 / parameters.alpha)
        else:
            tau = generator.beta(parameters.alpha, parameters.beta, size=(16, 64))[path % 16]
        draws += [
            Draw(i, j + (j >= i), parameters.theta_s * t) for i, j, t in zip(first, second, tau.tolist(), strict=True)
        ]
    raise AssertionError


def mean_rotation(weight: Array, tilted: Array) -> float:
    """MRC: mean over classes of the angle between each class vector and its tilted self, in radians."""
    return float(np.mean(angles_between(weight, tilted)))


def angles_between(weight: Array, tilted: Array) -> Array:
    """Angle of each class vector, (C,); vectors of zeros have no direction and are left out."""
    w, v = (np.asarray(each, np.float64) for each in (weight, tilted))
    length = np.linalg.norm(w, axis=1) * np.linalg.norm(v, axis=1)
    directed = length > 0
    cosine = np.einsum("cn,cn->c", w, v)[directed] / length[directed]
    return np.asarray(np.arccos(np.clip(cosine, -1.0, 1.0)))  # rounding takes the cosine of equal vectors past 1


def mrc_as_printed(weight: Array, rotation: Array) -> float:
    """1/C sum_i arccos( <w_i, R w_i> / (|w_i| |R w_i|) ), class by class."""
    total = 0.0
    for w in weight:
        rw = rotation @ w
        total += math.acos(min(1.0, max(-1.0, float(w @ rw) / (math.sqrt(w @ w) * math.sqrt(rw @ rw)))))
    return total / len(weight)


def matrices_of_algorithm_1(n: int, draws: Sequence[Draw]) -> list[Array]:
    """R after 0, 1, 2, ... rotations: R <- R R^t, with R^t the identity but for four elements, as printed."""
    matrices = [np.eye(n)]
    for draw in draws:
        k1, k2, theta = draw.first, draw.second, draw.angle
        elementary = np.eye(n)
        elementary[k1, k1], elementary[k1, k2] = math.cos(theta), -math.sin(theta)
        elementary[k2, k1], elementary[k2, k2] = math.sin(theta), math.cos(theta)
        matrices.append(matrices[-1] @ elementary)
    return matrices


@dataclass(frozen=True)
class Stopping(TiltParameters):
    """Parameters of paths that end after exactly `stop` rotations."""

    stop: int = 0

    def max_rotations(self, n: int) -> int:
        return self.stop


def source(weight: Array, seed: int, parameters: TiltParameters = PAPER) -> tuple[ClassVectors, Rotations]:
    return ClassVectors.of(weight), Rotations(weight.shape[1], seed, parameters)


def stops_of(
    weight: Array, seed: int, angles: Sequence[float], parameters: TiltParameters = PAPER, paths: int = 1
) -> Stops:
    return find_stops(*source(weight, seed, parameters), np.arange(paths), np.array(angles))


def tilted(weight: Array, seed: int, rotations: int, theta_s: float = 0.9) -> Array:
    """R^T W of path 0 after so many rotations."""
    return tilted_means(*source(weight, seed, TiltParameters(theta_s=theta_s)), np.array([[rotations]]))[0]


def gaussian(classes: int, n: int, seed: int = 0, dtype: Any = np.float64) -> Array:
    return np.random.default_rng([classes, n, seed]).normal(size=(classes, n)).astype(dtype)


@pytest.mark.parametrize(("classes", "n"), SHAPES)
def test_after_every_rotation_as_algorithm_1_prints_it(classes: int, n: int) -> None:
    weight = gaussian(classes, n)
    every = np.arange(1, 61)[None]
    forward = tilted_means(*source(weight, 5), every)
    pairs = tilted_means(*source(weight, 5), every, paired=1)
    matrices = matrices_of_algorithm_1(n, draws_of(5, 0, n, PAPER, 60))
    for rotation, one, both in zip(matrices[1:], forward, pairs, strict=True):
        # 60 rotations of float64: each rounds a coordinate by 2^-53 of its size, 60 * 2^-53 = 7e-15 of elements < 5
        np.testing.assert_allclose(one, weight @ rotation, rtol=0, atol=1e-12)  # rows are R^T w
        np.testing.assert_allclose(2 * both - one, weight @ rotation.T, rtol=0, atol=1e-12)  # rows are R w


@pytest.mark.parametrize(("classes", "n", "seed"), [(*shape, k % 3) for k, shape in enumerate(SHAPES)])
def test_stops_at_the_first_rotation_past_the_target(classes: int, n: int, seed: int) -> None:
    weight = gaussian(classes, n, seed)
    limit = PAPER.max_rotations(n)
    targets = np.radians([0.01, 1, 7, 30, 45, 60, 80])
    found = stops_of(weight, seed, targets, paths=18)  # more than are drawn together
    for path in (0, 7, 17):
        mrc = [mrc_as_printed(weight, r) for r in matrices_of_algorithm_1(n, draws_of(seed, path, n, PAPER, limit))]
        for k, target in enumerate(targets):
            expected = next((k for k, value in enumerate(mrc) if value > target), 0)  # while mRC(W, R) <= target
            assert found.rotations[path, k] == expected
            if expected:
                # arccos near 1 turns 2^-53 into 1e-16 / angle; the smallest angle of a class here is 1e-4, so 1e-12
                assert found.reached[path, k] == pytest.approx(mrc[expected], rel=0, abs=1e-9)


@given(
    n=st.integers(2, 8),
    seed=st.integers(0, 2**64 - 1),
    theta_s=st.floats(0.3, math.pi),
    sparse=st.booleans(),
    targets=st.lists(st.floats(0.01, 2), min_size=1, max_size=5, unique=True),
    n_t=st.integers(1, 30),
)
@settings(max_examples=50)
def test_no_rotation_past_the_target_is_missed(
    n: int, seed: int, theta_s: float, sparse: bool, targets: list[float], n_t: int
) -> None:
    """Class vectors along the axes turn by anything between 0 and 180 degrees while their mean is still small."""
    weight = np.eye(n) if sparse else gaussian(5, n, seed=seed)
    parameters = Stopping(theta_s=theta_s, stop=24, n_t=n_t)
    # a path ends where mRC is looked at
    end = -(-24 // n_t) * n_t
    mrc = [mrc_as_printed(weight, r) for r in matrices_of_algorithm_1(n, draws_of(seed, 0, n, parameters, end))]
    found = stops_of(weight, seed, sorted(targets), parameters)
    for stop, target in zip(found.rotations[0], sorted(targets), strict=True):
        # Algorithm 1 with n_t rotations a turn of its loop
        expected = next((k for k in range(0, end + 1, n_t) if mrc[k] > target), 0)
        # both round mRC to about 1e-8 near 0 and 180 degrees
        assert stop == expected or min(abs(angle - target) for angle in mrc) < 1e-7


def test_classes_past_90_degrees_do_not_hide_that_the_mean_is_past_the_target() -> None:
    """A turn of nearly 180 degrees, one class vector in its plane and nine near its axis; then a turn of nothing."""
    half_turns = TiltParameters(alpha=1e6, theta_s=math.pi)
    (draw,) = draws_of(2, 0, 6, half_turns, 1)
    axis = min({*range(6)} - {draw.first, draw.second})
    weight = np.zeros((10, 6))
    weight[0, draw.first] = 1
    weight[1:, draw.first], weight[1:, axis] = math.sqrt(0.4), math.sqrt(0.6)
    # 180 degrees, and nine times 2 asin(sqrt(0.4)) = 78.5 degrees: 88.6 on average, but acos of the mean cosine is 85.4
    found = stops_of(weight, 2, [math.radians(87)], half_turns)
    assert found.rotations[0, 0] == 1
    assert math.degrees(found.reached[0, 0]) == pytest.approx((math.degrees(math.pi) + 9 * 78.463) / 10, abs=0.01)


@pytest.mark.parametrize(
    ("members", "antithetic", "parameters"),
    pairwise([6, 40], [False, True], [PAPER, TiltParameters(alpha=2.0, beta=3.0, theta_s=1.5)]),
)
def test_members_are_averaged_as_algorithm_1_prints_it(
    members: int, antithetic: bool, parameters: TiltParameters
) -> None:
    weight, degrees = gaussian(5, 12), [25.0, 26.0, 50.0]
    expected = np.zeros((3, 12, 12))
    rotations = np.zeros(3)
    for path in range(members // 2 if antithetic else members):
        matrices = matrices_of_algorithm_1(12, draws_of(3, path, 12, parameters, parameters.max_rotations(12)))
        mrc = [mrc_as_printed(weight, r) for r in matrices]
        for k, angle in enumerate(degrees):
            stop = next(q for q, value in enumerate(mrc) if value > math.radians(angle))
            rotations[k] += stop * (2 if antithetic else 1) / members
            expected[k] += (matrices[stop] + (matrices[stop].T if antithetic else 0)) / members
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 2e-6)):
        made = averages(weight.astype(dtype), degrees, members, Draws(3, antithetic, parameters))
        for average, mean, count in zip(made, expected, rotations, strict=True):
            assert average.weight.dtype == dtype
            # as above; float32: 24 bits of elements below 4, some 30 rotations, and sums of 16
            np.testing.assert_allclose(average.weight, weight @ mean, rtol=0, atol=tolerance)
            assert average.rotations == pytest.approx(count, rel=1e-12)
            assert average.reached > average.angle


# ---- properties ----

shapes = st.tuples(st.integers(1, 12), st.integers(2, 12))
seeds_drawn = st.integers(0, 2**64 - 1)


@given(pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60))
def test_levels_are_disjoint_and_keep_the_order_of_what_shares_a_coordinate(pairs: list[tuple[int, int]]) -> None:
    drawn = np.array([pair for pair in pairs if pair[0] != pair[1]], np.int64).reshape(-1, 2)
    found = list(levels(drawn, 10))
    at = {int(k): level for level, members in enumerate(found) for k in members}
    assert sorted(at) == list(range(len(drawn)))
    for members in found:
        assert len({*drawn[members].ravel().tolist()}) == 2 * len(members)
    for one, other in itertools.combinations(range(len(drawn)), 2):
        if {*drawn[one]} & {*drawn[other]}:
            assert at[one] < at[other]


@given(
    seed=seeds_drawn, paths=st.lists(st.integers(0, 100), min_size=1, max_size=9, unique=True),
    start=st.integers(0, 200), count=st.integers(1, 200),
)  # fmt: skip
def test_rotations_of_a_path_do_not_depend_on_what_is_drawn_with_them(
    seed: int, paths: list[int], start: int, count: int
) -> None:
    rotations = Rotations(7, seed, PAPER)
    pairs, turn = rotations.of(np.array(sorted(paths)), start, start + count)
    for k, path in enumerate(sorted(paths)):
        expected = draws_of(seed, path, 7, PAPER, start + count)[start:]
        assert [Draw(i, j, t) for (i, j), t in zip(pairs[k].tolist(), turn[k].tolist(), strict=True)] == expected


def test_draws_have_the_distribution_that_was_asked_for() -> None:
    """Ordered pairs of different coordinates, all alike; angles theta_s times Beta(alpha, beta)."""
    for parameters in (PAPER, TiltParameters(alpha=2.0, beta=3.0, theta_s=1.5)):
        pairs, turn = Rotations(4, 0, parameters).of(np.arange(160), 0, 640)
        counts = np.bincount(pairs[..., 0].ravel() * 4 + pairs[..., 1].ravel(), minlength=16).reshape(4, 4)
        assert not np.diag(counts).any()
        # 102,400 draws over 12 pairs: 8,533 each, with a standard deviation of 88; four of these
        assert np.abs(counts[~np.eye(4, dtype=bool)] - 102_400 / 12).max() < 4 * 88.5
        a, b = parameters.alpha, parameters.beta
        tau = turn / parameters.theta_s
        deviation = math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
        assert tau.mean() == pytest.approx(a / (a + b), abs=4 * deviation / math.sqrt(tau.size))
        assert tau.std() == pytest.approx(deviation, rel=0.02)


@given(shape=shapes, seed=seeds_drawn, rotations=st.integers(1, 150))
def test_rotations_keep_the_norm_of_every_class_vector(shape: tuple[int, int], seed: int, rotations: int) -> None:
    weight = gaussian(*shape, seed=seed)
    turned = tilted(weight, seed, rotations)
    # each rotation changes a norm by two roundings at most: 150 * 2 * 2^-53 = 3e-14, relative
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(weight, axis=1), rtol=1e-13)


@given(shape=shapes, seed=seeds_drawn, rotations=st.integers(1, 60))
def test_mrc_of_a_rotation_is_that_of_its_transpose(shape: tuple[int, int], seed: int, rotations: int) -> None:
    weight, n = gaussian(*shape, seed=seed), shape[1]
    rotation = matrices_of_algorithm_1(n, draws_of(seed, 0, n, PAPER, rotations))[-1]
    forward, backward = angles_between(weight, weight @ rotation.T), angles_between(weight, weight @ rotation)
    # 60 products round R by 60 * 2^-53 = 7e-15; compared as cosines, because arccos near 0 loses half of the digits
    np.testing.assert_allclose(np.cos(forward), np.cos(backward), rtol=0, atol=1e-13)
    # and there acos(1 - 1e-14) = 1.4e-7
    assert mean_rotation(weight, weight @ rotation.T) == pytest.approx(
        mean_rotation(weight, weight @ rotation), abs=2e-7
    )


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(2, 40)),
    seed=seeds_drawn,
    n_t=st.integers(1, 200),
    others=st.lists(st.floats(0, 1.5), max_size=6),
    target=st.floats(0.1, 1.3),
    dtype=st.sampled_from([np.float32, np.float64]),
    paths=st.integers(1, 20),
)
@settings(max_examples=50)
def test_neither_other_angles_nor_other_paths_change_a_bit(
    shape: tuple[int, int], seed: int, n_t: int, others: list[float], target: float, dtype: Any, paths: int
) -> None:
    weight = gaussian(*shape, seed=seed, dtype=dtype)
    parameters = TiltParameters(n_t=n_t)
    alone = stops_of(weight, seed, [target], parameters)
    angles = sorted({*others, target})
    among = stops_of(weight, seed, angles, parameters, paths)
    at = angles.index(target)
    assert among.rotations[0, at] == alone.rotations[0, 0]
    assert among.reached[0, at] == alone.reached[0, 0]


@pytest.mark.parametrize("classes", [1, 2, 9, 1000])
def test_the_number_of_classes_does_not_make_the_angle_depend_on_the_window(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy adds what is contiguous pairwise and the rest in order: angles of a rotation, rotations of a lone class."""
    weight = gaussian(classes, 200)
    for seed in range(2):
        found = []
        for window in (1, 2, 7, 50, 200):
            monkeypatch.setattr(averages_module, "_WINDOW", window)
            found.append(stops_of(weight, seed, [1.0]))
        assert len({(one.rotations[0, 0], one.reached[0, 0]) for one in found}) == 1


@given(
    shape=shapes, seed=seeds_drawn, members=st.integers(1, 40), bits=st.integers(4, 14), antithetic=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
def test_memory_does_not_change_a_bit(
    shape: tuple[int, int], seed: int, members: int, bits: int, antithetic: bool, dtype: Any
) -> None:
    """However many paths, classes, losses and averages are in memory together."""
    weight = gaussian(*shape, seed=seed, dtype=dtype)
    draws = Draws(seed, antithetic)
    plenty = list(averages(weight, [10, 30, 50], members, draws))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(averages_module, "_NARROW", 1)
        for name in ("_HELD", "_TOGETHER", "_MOST_BYTES", "_LOSSES"):
            patch.setattr(averages_module, name, 2**bits)
        little = list(averages(weight, [10, 30, 50], members, draws))
    for one, other in zip(plenty, little, strict=True):
        assert (one.angle, one.rotations, one.reached) == (other.angle, other.rotations, other.reached)
        np.testing.assert_array_equal(one.weight, other.weight, strict=True)


@given(shape=shapes, seed=seeds_drawn, sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4), data=st.data())
def test_an_ensemble_does_not_know_what_was_asked_for_before(
    shape: tuple[int, int], seed: int, sizes: list[int], data: st.DataObject
) -> None:
    weight, draws = gaussian(*shape, seed=seed), Draws(seed)
    ensemble = Ensemble(weight, draws, [5.0 * k for k in range(1, 15)])
    for size in sizes:
        angles = sorted(data.draw(st.sets(st.sampled_from([5.0, 12.5, 30.0, 31.0, 55.0]), min_size=1)))
        asked = list(ensemble.averages(angles, size))
        fresh = list(averages(weight, angles, size, draws))
        assert [(one.angle, one.rotations, one.reached) for one in asked] == [
            (one.angle, one.rotations, one.reached) for one in fresh
        ]
        for one, other in zip(asked, fresh, strict=True):
            np.testing.assert_array_equal(one.weight, other.weight, strict=True)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_weight_is_only_read(order: Any, dtype: Any) -> None:
    weight = np.array(gaussian(6, 10, dtype=dtype), order=order)
    weight.setflags(write=False)
    before = weight.copy()
    made = list(averages(weight, [30, 60], 3, Draws(antithetic=True)))
    np.testing.assert_array_equal(weight, before, strict=True)
    others = averages(np.ascontiguousarray(weight), [30, 60], 3, Draws(antithetic=True))
    for one, other in zip(made, others, strict=True):
        assert one.weight.shape == weight.shape
        assert one.weight.dtype == dtype
        np.testing.assert_array_equal(one.weight, other.weight)


def test_float32_angle_is_exact_for_its_own_vectors() -> None:
    """The angle follows in float64 what float32 did to the vectors: no drift however long the path."""
    weight = gaussian(20, 64, dtype=np.float32)
    found = stops_of(weight, 3, np.radians([30, 60, 85]))
    for stop, reached in zip(found.rotations[0], found.reached[0], strict=True):
        # differences of float32 values, multiplied and summed in float64; but the length of the vectors drifts by 25
        # roundings of 2^-24, of either sign, of each of the 64 coordinates (800 rotations touch each 25 times): < 1e-6
        assert reached == pytest.approx(mean_rotation(weight, tilted(weight, 3, int(stop))), abs=1e-6)


@given(shape=shapes, seed=seeds_drawn, target=st.floats(0.05, 1.2))
def test_a_zero_class_vector_is_left_out(shape: tuple[int, int], seed: int, target: float) -> None:
    weight = gaussian(*shape, seed=seed)
    at = seed % (shape[0] + 1)
    with_zero = np.insert(weight, at, 0.0, axis=0)
    plain, padded = stops_of(weight, seed, [target]), stops_of(with_zero, seed, [target])
    assert plain.rotations[0, 0] == padded.rotations[0, 0]
    # not bit by bit: the squared norm of a lone class vector adds its 12 terms in another order, 12 * 2^-53 = 1e-15
    assert plain.reached[0, 0] == pytest.approx(padded.reached[0, 0], rel=1e-14)
    one, other = (tilted(w, seed, 40) for w in (weight, with_zero))
    np.testing.assert_array_equal(np.delete(other, at, axis=0), one)
    np.testing.assert_array_equal(other[at], np.zeros(shape[1]))
    # arccos near 1 turns 2^-53 of the cosine into 1e-8
    assert mean_rotation(with_zero, other) == pytest.approx(mean_rotation(weight, one), abs=1e-7)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros((3, 4)), "every class vector is zero"),
        (np.ones((3, 1)), r"n >= 2.*\(3, 1\)"),
        (np.ones(4), r"\(C, n\).*\(4,\)"),
        (np.ones((2, 3, 4)), r"\(C, n\).*\(2, 3, 4\)"),
    ],
)
def test_weights_that_cannot_be_tilted(weight: Array, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        next(averages(weight, [30], 1, Draws()))


@pytest.mark.parametrize(
    "wrong", [{"alpha": 0.0}, {"beta": -1.0}, {"theta_s": 0.0}, {"theta_s": 3.2}, {"theta_s": math.nan}, {"n_t": 0}]
)
def test_parameters_that_cannot_be_drawn_from(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        TiltParameters(**wrong)


# ---- antithetic members ----


def test_antithetic_pairs_leave_less_noise_than_as_many_members() -> None:
    """R + R^T is symmetric: the antisymmetric half of the noise is gone."""
    weight, degrees = gaussian(8, 96), 36
    limit = math.cos(math.radians(degrees)) * weight
    noise = [
        float(np.linalg.norm(next(averages(weight, [degrees], 64, Draws(7, antithetic))).weight - limit))
        for antithetic in (True, False)
    ]
    # 33 % less was measured for wide heads; two such norms are known to 3 % each here
    assert noise[0] < 0.8 * noise[1]


# ---- the end of a path ----


def test_averages_end_after_the_last_angle_that_every_member_reaches() -> None:
    weight = gaussian(6, 16)
    degrees = [30.0, 60, 80, 84, 86, 87, 88, 89, 89.5, 89.9]
    counts = (stops_of(weight, 4, np.radians(degrees), paths=8).rotations > 0).sum(axis=1)
    assert 0 < counts.min() < counts.max()  # the case that is tested
    together = list(averages(weight, degrees, 8, Draws(4)))
    assert len(together) == counts.min()
    assert all(one.reached > one.angle for one in together)


# ---- the paper's figures ----


@functools.cache
def mrc_over_paths(n: int, theta_s: float, rotations: int, paths: int = 30) -> NDArray[np.float64]:
    """Degrees of mRC of one tilted weight per path, (10, n) Gaussian class vectors."""
    weight = gaussian(10, n)
    return np.degrees([mean_rotation(weight, tilted(weight, seed, rotations, theta_s)) for seed in range(paths)])


def _rotations_to(cosine: float, n: int, theta_s: float) -> int:
    """Rotations after which E<w, R w> / |w|^2 = (1 - 2/n (1 - E cos t))^k has fallen to a cosine."""
    tau = (np.arange(2000) + 0.5) / 2000
    turned = float(np.mean(1 - np.cos(theta_s * tau ** (1 / 5))))  # tau^(1/5) has the distribution Beta(5, 1)
    return round(math.log(cosine) / math.log1p(-2 / n * turned))


@pytest.mark.parametrize("theta_s", [0.5, 1.5])
def test_mrc_grows_with_the_rotations_towards_90_degrees(theta_s: float) -> None:
    """Figure 'mRC corresponding to the number of rotations': every curve rises and levels off at 90 degrees."""
    n = 48
    steps = [_rotations_to(c, n, theta_s) for c in (0.97, 0.9, 0.75, 0.5, 0.3, 0.1)]
    means = [float(np.mean(mrc_over_paths(n, theta_s, k))) for k in steps]
    assert all(a < b for a, b in itertools.pairwise(means))
    end = mrc_over_paths(n, theta_s, _rotations_to(0.001, n, theta_s))
    # one weight: std of mRC at 90 degrees about 57 / sqrt(48) / sqrt(10) = 2.6 degrees; the mean of 30 seeds has 0.5
    assert np.mean(end) == pytest.approx(90, abs=2)
    assert means[-1] < 90


def test_the_mean_over_members_tends_to_a_multiple_of_the_weight() -> None:
    """E[G] = (1 - 2/n (1 - E cos t)) I: what averaging leaves is cos(mRC) W, and noise of size 1 / sqrt(n_e)."""
    weight, degrees = gaussian(8, 96), 50
    target = math.radians(degrees)
    limit = math.cos(target) * weight
    for members in (8, 32, 128, 512):
        average = next(averages(weight, [degrees], members, Draws(6)))
        error = float(np.linalg.norm(average.weight - limit) / np.linalg.norm(limit))
        # The noise of one member is tan(mRC) relative; 8 * 96 coordinates measure it to about 1 / sqrt(2 * 768) = 3 %.
        # A floor stays: the angle is passed by up to one rotation and differs between classes, 1-2 % of the cosine.
        expected = math.hypot(math.tan(target) / math.sqrt(members), 0.01)
        assert error == pytest.approx(expected, rel=0.15)


def test_a_class_vector_that_is_nearly_zero_counts_as_zero() -> None:
    """float32 squares underflow: what weight decay leaves of a class that never came must not move the angle."""
    weight = gaussian(10, 64, dtype=np.float32)
    for factor in (1e-18, 1e-24, 1e-38, 0.0):
        dead = weight.copy()
        dead[3] *= np.float32(factor)
        found = stops_of(dead, 0, [math.radians(70)])
        turned = tilted(dead, 0, int(found.rotations[0, 0]))
        live = np.delete(np.arange(10), 3)
        assert mean_rotation(dead[live], turned[live]) == pytest.approx(found.reached[0, 0], abs=1e-5)


# --- Class vectors, feature-major, and a large weight in float64, block by block


def test_a_tilted_weight_is_rotated_by_its_angle() -> None:
    weight = np.random.default_rng(0).standard_normal((10, 256))
    tilted = tna_onnx.tilt(weight, 40, seed=3)
    cosines = np.sum(weight * tilted, axis=1) / np.linalg.norm(weight, axis=1) / np.linalg.norm(tilted, axis=1)
    # past the angle by less than one rotation, which turns two of 256 coordinates
    assert 40 <= np.degrees(np.arccos(cosines)).mean() < 41
    np.testing.assert_array_equal(tna_onnx.tilt(weight, 40, seed=3), tilted)
    with pytest.raises(UsageError, match="90"):
        tna_onnx.tilt(weight, 90)
    with pytest.raises(UsageError):
        tna_onnx.tilt(weight, 40, members=-1)


def test_the_weight_of_a_report_can_be_drawn_again(tmp_path: Path) -> None:
    model, output = MODEL, tmp_path / "tilted.onnx"
    choices = tna_onnx.Settings(ensemble_size=3, seed=5)
    data = MODEL.with_name("calib.npz")
    report = tna_onnx.calibrate(model, data, map="none", search="sparse", output=output, settings=choices)
    tensors = [{t.name: t for t in onnx.load(path).graph.initializer} for path in (model, output)]
    old, new = (numpy_helper.to_array(each["head.weight"]) for each in tensors)
    assert report.angle > 0
    np.testing.assert_array_equal(tna_onnx.tilt(old, report.angle, report.settings["seed"], members=3), new)
