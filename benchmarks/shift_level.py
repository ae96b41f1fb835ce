"""How often `shift` refuses where nothing but class frequencies has changed, and the model is calibrated exactly.

Classes are normal distributions around corners of a simplex; frequencies after the shift come from a Dirichlet
distribution with parameters below 1, so that some classes are nearly all and others nearly none.

    python benchmarks/shift_level.py --draws 100
"""

from __future__ import annotations

import numpy as np
from common import arguments, markdown
from numpy.typing import NDArray
from scipy.special import softmax

from tna_onnx.errors import CheckFailed
from tna_onnx.numerics.prior_shift import smoothed
from tna_onnx.numerics.shift_evidence import Observed
from tna_onnx.shifting.estimate import estimate
from tna_onnx.shifting.settings import ShiftSettings

# (classes, distance of their centres, parameter of the Dirichlet distribution, labelled samples, others)
_CASES = ((3, 1.0, 0.3, 1000, 1000), (5, 1.0, 0.1, 1000, 300), (10, 1.2, 0.05, 2000, 500), (10, 1.5, 0.05, 1000, 1000))


def drawn(
    rng: np.random.Generator, n: int, frequencies: NDArray[np.float64], distance: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the probabilities of n samples under equal frequencies, and their classes."""
    labels = rng.choice(len(frequencies), n, p=frequencies)
    x = rng.standard_normal((n, len(frequencies)))
    x[np.arange(n), labels] += distance
    return softmax(distance * x, axis=1), labels


def main() -> None:
    """Print a row for each case."""
    parser = arguments(__doc__)
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args()
    rows = []
    for classes, distance, parameter, old, new in _CASES:
        rng = np.random.default_rng(1)
        refused = 0
        for _ in range(options.draws):
            target = np.maximum(rng.dirichlet(np.full(classes, parameter)), 1e-4)
            p, labels = drawn(rng, old, np.full(classes, 1 / classes), distance)
            others, _ = drawn(rng, new, target / target.sum(), distance)
            source = smoothed(np.bincount(labels, minlength=classes) / old, old)
            observed = Observed(labels, p.argmax(axis=1), p.max(axis=1), others, source, counted=True)
            try:
                estimate(observed, ShiftSettings(), "samples")
            except CheckFailed:
                refused += 1
        rows.append([f"{classes}", f"{distance:g}", f"{parameter:g}", f"{old:,}", f"{new:,}", f"{refused}"])
    heads = ["classes", "distance", "Dirichlet", "labelled", "others", f"refused of {options.draws}"]
    print(markdown(heads, rows, words=0))


if __name__ == "__main__":
    main()
