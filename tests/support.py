"""What tests share: how the command line and models are run, and settings that take no longer than a test needs."""

import functools
import inspect
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from tna_onnx.api.arguments import grouped
from tna_onnx.cli.command import group
from tna_onnx.data.options import Data
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.scores import SampleScores

# Without a search, a choice or samples held back for them. For what is true of every method.
PLAIN: dict[str, Any] = {"search": "none", "map": "ts", "device": "cpu"}

# A tilted weight and a map, the angle from a few, the members never drawn. For what is true of every search.
TILTED: dict[str, Any] = {"search": "sparse", "map": "ts", "ensemble_size": "inf", "angle_step": 15.0, "device": "cpu"}

# The same with members, which the seed decides on.
WALKED: dict[str, Any] = {**TILTED, "ensemble_size": 10}


@functools.cache
def saturates() -> bool:
    """Whether this CPU adds two products of 8-bit integers in 16 bits, which overflows: x86-64 without VNNI."""
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [4, 4])
    weight = helper.make_tensor("w", TensorProto.INT8, [4, 4], [127] * 16)
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [4, 4])
    model = helper.make_model(
        helper.make_graph([node], "products", [x], [y], [weight]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (products,) = session.run(None, {"x": np.full((4, 4), 255, np.uint8)})
    return bool(products[0, 0] != 4 * 255 * 127)


def with_options(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a public function with options by name, as the command line does: some are fields of its dataclasses."""
    values = {**dict(zip(inspect.signature(function).parameters, args, strict=False)), **options}
    labels = values.pop("eval_labels", None)
    if labels is not None:
        values["eval"] = Data(values["eval"], labels=labels)
    return function(**grouped(function, values))


def loaded(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file."""
    with np.load(path) as stored:
        return dict(stored)


def outputs_of(model: Any, feeds: Any) -> dict[str, Any]:
    """Run a model by itself, in plain ONNX Runtime: output -> values. `feeds` is for the first input, or a mapping."""
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    if not isinstance(feeds, dict):
        feeds = {session.get_inputs()[0].name: feeds}
    return dict(zip(names, session.run(names, feeds), strict=True))


def pairwise(*choices: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of one of each choice, in which every two values of two choices occur together.

    >>> len(pairwise("ab", "cd", "ef", "gh")) < 16
    True
    """
    values = [list(each) for each in choices]
    places = [*itertools.combinations(range(len(values)), 2)]

    rows = itertools.product(*(range(len(each)) for each in values))
    pairs = {row: {(i, j, row[i], row[j]) for i, j in places} for row in rows}
    missing = set().union(*pairs.values())
    taken = []
    while missing:
        best = max(pairs, key=lambda row: len(pairs[row] & missing))
        missing -= pairs[best]
        taken.append(tuple(each[k] for each, k in zip(values, best, strict=True)))
    return taken


def words_of(settings: dict[str, Any]) -> list[str]:
    """Return settings as words of the command line; the step of the grid has none.

    >>> words_of({"search": "none", "angle_step": 15.0, "bins": 10})
    ['--search', 'none', '--bins', '10']
    """
    flags = {name: value for name, value in settings.items() if name != "angle_step"}
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def ece(scores: SampleScores, bins: int = 15) -> float:
    """Calibration error over bins of equal width."""
    return metric_value(scores, "ece", bins)


def ada_ece(scores: SampleScores, bins: int = 15) -> float:
    """Calibration error over bins of equal mass."""
    return metric_value(scores, "adaece", bins)


def cli(*words: object, command: click.Command = group) -> Result:
    """Run `tna-onnx WORDS` in this process; an exception other than an exit fails the test.

    >>> cli("--version").exit_code
    0
    """
    result = CliRunner().invoke(command, [str(word) for word in words], prog_name="tna-onnx")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(*words: object) -> Result:
    """Run `tna-onnx WORDS`, which must end well."""
    result = cli(*words)
    assert result.exit_code == 0, result.output
    return result


def refused(code: int, message: str, *words: object) -> Result:
    """Run `tna-onnx WORDS`, which must end with an exit code and a message."""
    result = cli(*words)
    assert (result.exit_code, message in result.output) == (code, True), result.output
    return result


def program(*words: object, code: str = "") -> list[str]:
    """Return the words that start the real program, after some code that may change the package."""
    start = f"import sys; sys.argv[0] = 'tna-onnx'\n{code}\nfrom tna_onnx.cli import main; main()"
    return [sys.executable, "-c", start, *map(str, words)]


def run(*words: object, code: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `tna-onnx WORDS` in a process of its own; its outputs are captured unless `options` say otherwise."""
    if not {"stdout", "stderr"} & options.keys():
        options["capture_output"] = True
    return subprocess.run(program(*words, code=code), text=True, check=False, **options)
