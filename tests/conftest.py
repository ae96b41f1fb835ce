"""Fixtures that several tests share: the demo model, a small random classifier, optional real data."""

import copy
import functools
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, settings

from tests.builders import nodes_of, small_model
from tna_onnx.numerics import intervals, isotonic, residuals
from tna_onnx.pipeline import sample_checks

ROOT = Path(__file__).resolve().parent.parent


def _digests(*arrays: Any) -> tuple[Any, ...]:
    return tuple((a.dtype.str, a.shape, hashlib.sha256(np.ascontiguousarray(a)).digest()) for a in arrays)


def _keep(module: Any, name: str, key: Callable[..., Any]) -> None:
    """Let a module keep what its function has found: hundreds of tests calibrate the same samples.

    What such a function gives depends on its arguments alone.
    """
    function, found = getattr(module, name), {}

    @functools.wraps(function)
    def kept(*args: Any, **options: Any) -> Any:
        arguments = key(*args, **options)
        if arguments not in found:
            found[arguments] = function(*args, **options)
        return copy.deepcopy(found[arguments])

    setattr(module, name, kept)


_keep(sample_checks, "near_copies", lambda features, equal=False: (_digests(features), equal))

# Every report has a band and intervals; their own tests, and pages that show them, draw as many samples as users do.
_FEWER = ((isotonic, "_RESAMPLES", 20), (residuals, "DRAWS", 100), (intervals, "DRAWS", 100))
_AS_USERS = [(module, name, getattr(module, name)) for module, name, _ in _FEWER]
for _changed in _FEWER:
    setattr(*_changed)


def draw_as_users(patch: pytest.MonkeyPatch) -> None:
    """Draw as many samples as there are outside of tests."""
    for each in _AS_USERS:
        patch.setattr(*each)


# The same few examples in every run, on slow machines too; `--hypothesis-profile=default` looks for new and more ones.
# A test whose space is large says how many it needs.
settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Set what workers, and the programs that they start, have in common."""
    # there is a worker a core already
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # hundreds of programs would compile everything that they import where no bytecode may be kept beside it
    cache = getattr(config, "cache", None)  # none with `-p no:cacheprovider`
    if cache is not None and os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = str(cache.mkdir("bytecode"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that has passed; see `pytest_collection_modifyitems`."""
    record = os.environ.get("PASSED_TESTS_RECORD")
    if record and "PYTEST_XDIST_WORKER" not in os.environ and report.when == "call" and report.passed:
        with Path(record).open("a", encoding="utf-8") as lines:
            lines.write(f"{report.nodeid}\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what an earlier run has passed, if `PASSED_TESTS_LEAVE_OUT` names its record.

    `.ci/run` runs the tests twice, without the optional libraries and with them. Nothing need pass in both.
    """
    record = os.environ.get("PASSED_TESTS_LEAVE_OUT")
    if record is None:
        return
    passed = set(Path(record).read_text(encoding="utf-8").splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


@dataclass(frozen=True)
class Demo:
    """The embedded digit classifier and its data."""

    model: Path = ROOT / "models/digits/model.onnx"
    calib: Path = ROOT / "models/digits/calib.npz"
    test: Path = ROOT / "models/digits/test.npz"


@pytest.fixture(scope="session")
def demo() -> Demo:
    """Return the demo's paths."""
    return Demo()


@dataclass(frozen=True)
class Small:
    """A small overconfident classifier: input `x` (N, 8) -> Relu(x A) (32) -> `logits` (N, 5), and its data."""

    model: Path
    calib: Path
    test: Path


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Write a classifier whose labels are drawn from its softmax at temperature 3, so that it is overconfident."""
    folder, rng = tmp_path_factory.mktemp("small"), np.random.default_rng(5)
    hidden = rng.standard_normal((8, 32)).astype(np.float32)
    weight, bias = rng.standard_normal((5, 32)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    model = small_model(
        nodes_of(
            "MatMul x hidden > h name=hidden; Relu h > features name=relu; "
            "Gemm features weight bias > logits name=head transB=1"
        ),
        inputs={"x": ["N", 8]},
        outputs={"logits": ["N", 5]},
        tensors={"hidden": hidden, "weight": weight, "bias": bias},
        metadata={"team": "unchanged"},
    )
    onnx.save(model, folder / "model.onnx")
    for name in ("calib", "test"):
        x = rng.standard_normal((1500, 8)).astype(np.float32)
        logits = np.maximum(x @ hidden, 0) @ weight.T + bias
        labels = np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=1)
        np.savez(folder / f"{name}.npz", x=x, labels=labels)
    return Small(folder / "model.onnx", folder / "calib.npz", folder / "test.npz")


@pytest.fixture(autouse=True)
def _no_variable_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide from the programs under test what only steers the tests; they would say that it is no setting."""
    monkeypatch.delenv("TNA_ONNX_CIFAR10", raising=False)


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """Return a folder with `calib/`, `test/`, `resnet20.onnx` and `resnet20-wide.onnx`; named by TNA_ONNX_CIFAR10."""
    folder = os.environ.get("TNA_ONNX_CIFAR10", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("TNA_ONNX_CIFAR10 does not name a folder with CIFAR-10 images and models")
    return Path(folder)
