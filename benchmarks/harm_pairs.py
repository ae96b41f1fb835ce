"""The pairs of a model and data of the harm benchmark: a table, and the groups that each pair is counted in."""

from __future__ import annotations

from dataclasses import dataclass

_RARE = (
    "binary-rare", "binary-1", "classes-5-rare", "classes-10-rare", "friedman-5-rare", "quantiles-8-rare",
    "classes-12-rare",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A model and the data that it is calibrated on.

    Attributes:
        data: a name in `harm_problems.DATA`, `demo` or `cifar10`.
        model: a name in `harm_problems.MODELS`, or a file's stem of `demo` and `cifar10`.
        calibration: samples to calibrate on; up to 5,000 others are the test data.
        moved: how the pool differs from the training data: `prior`, `noise`, `groups`, `labels-PERCENT`, `copies` of
            calibration samples, or nothing (`harm_problems.shift`).
        drawn: whether labels are drawn from the model's own probabilities, so that it is calibrated.
    """

    data: str
    model: str
    calibration: int
    moved: str = ""
    drawn: bool = False

    @property
    def source(self) -> str:
        """Name of the pool, which pairs share."""
        return "_".join(filter(None, (self.data, self.model, self.moved)))

    @property
    def name(self) -> str:
        """What tables call it."""
        drawn = "drawn" if self.drawn else ""
        return ", ".join(filter(None, (self.data, self.model, self.moved, drawn, str(self.calibration))))

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that it is counted in, `all` among them; a calibrated model is in no other."""
        if self.drawn:
            return ("calibrated",)
        # the smaller CIFAR network was trained on images that were not compressed
        shifted = self.moved in ("prior", "noise") or (self.data, self.model) == ("cifar10", "resnet20")
        holds = {
            "shifted": shifted,
            "wrong labels": self.moved.startswith("labels"),
            "a class below 5 %": self.data in _RARE or self.moved == "prior",
            "near copies": self.moved == "copies",
            "unknown groups": self.moved == "groups",
        }
        return ("all", *(name for name, member in holds.items() if member))


GROUPS = ("all", "shifted", "wrong labels", "a class below 5 %", "near copies", "unknown groups", "calibrated")

# data, model, calibration samples, and what else there is to say
_TABLE = """
iris-like    logistic    200
wine-like    mlp-64      200
wine-like    neighbours  300
blobs        mlp-64      200
blobs        logistic    500
blobs        naive-bayes 500
classes-5    logistic    500
classes-5    mlp-32      500
classes-5    forest      500
classes-5    boosting    1000
classes-5    svc         500
classes-5-rare mlp-64    1000
classes-5-rare boosting  1000
classes-10   mlp-128     1000
classes-10   mlp-256     5000
classes-10   forest      1000
classes-10   naive-bayes 1000
classes-10   neighbours  500
classes-20   mlp-128     2000
classes-50   mlp-128     2000
classes-100  mlp-128     5000
classes-100  logistic    2000
classes-100  forest      2000
binary       logistic    200
binary       mlp-64      500
binary       mlp-256     2000
binary       forest      500
binary       boosting    1000
binary       naive-bayes 1000
binary       neighbours  300
moons        svc         500
moons        mlp-64      500
cancer       mlp-64      200
cancer       naive-bayes 200
binary-rare  forest      1000
binary-rare  boosting    2000
digits       mlp-64      400
digits       forest      400
digits       svc         700
demo         model       200
demo         model       1000
cifar10      resnet20    1000
cifar10      resnet20    5000
cifar10      resnet20-wide 500
cifar10      resnet20-wide 5000
classes-5    logistic    500  noise
classes-10   mlp-128     1000 noise
binary       forest      1000 noise
digits       mlp-64      400  noise
classes-5    boosting    1000 prior
classes-10   mlp-128     1000 prior
binary       mlp-64      500  prior
demo         model       500  prior
cifar10      resnet20-wide 1000 prior
binary-rare  mlp-64      1000
binary-rare  logistic    1000
binary-1     boosting    2000
classes-10-rare mlp-128  1000
classes-10-rare forest   1000
classes-10   mlp-128     1000 labels-5
classes-10   mlp-256     2000 labels-10
digits       mlp-64      400  labels-10
classes-5    logistic    500  labels-20
demo         model       1000 labels-20
classes-5    mlp-32      500  copies
classes-10   mlp-128     1000 copies
digits       mlp-64      400  copies
demo         model       1000 copies
classes-5    mlp-32      500  groups
classes-10   mlp-128     1000 groups
binary       mlp-64      500  groups
digits       mlp-64      400  groups
blobs        logistic    500  drawn
classes-5    boosting    1000 drawn
classes-10   mlp-128     1000 drawn
classes-100  logistic    2000 drawn
binary       logistic    200  drawn
binary       mlp-64      500  drawn
binary       forest      1000 drawn
digits       mlp-64      400  drawn
demo         model       1000 drawn
cifar10      resnet20    1000 drawn
cifar10      resnet20-wide 5000 drawn
"""


def _pair(line: str) -> Pair:
    data, model, calibration, *words = line.split()
    drawn = "drawn" in words
    return Pair(data, model, int(calibration), "".join(set(words) - {"drawn"}), drawn)


PAIRS = tuple(_pair(line) for line in _TABLE.strip().splitlines())

# Ten families that no rule of the choice was made on: three with 200 samples or fewer, three with a class below 2 %,
# two of two classes, one of several labels, one with wrong labels. Those that are drawn have nothing to gain.
_FAMILIES = """
quantiles-6  mlp-64      200
friedman-4   boosting    120
circles      mlp-64      150
hastie       forest      1000
friedman-5-rare boosting 2000
quantiles-8-rare mlp-128 3000
classes-12-rare mlp-64   1500
friedman-7   mlp-128     1000 labels-15
checker-3    neighbours  800
tags-8       mlp-32      600
quantiles-6  mlp-64      200  drawn
hastie       forest      1000 drawn
quantiles-8-rare mlp-128 3000 drawn
checker-3    neighbours  800  drawn
"""

FAMILIES = tuple(_pair(line) for line in _FAMILIES.strip().splitlines())

# One of each kind, small, without files.
_QUICK = (
    "iris-like, logistic, 200",
    "binary, forest, noise, 1000",
    "binary, logistic, drawn, 200",
    "wine-like, mlp-64, 200",
)
QUICK = tuple(pair for pair in PAIRS if pair.name in _QUICK)
