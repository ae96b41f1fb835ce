"""Writes the pictures of docs/gallery.md and README.md: the first screen of six pages, each of a run.

`python docs/images/make_gallery.py`

Run it in a copy of the repository that has the package, Pillow and Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WIDTH = 1280
COLOURS = 64

DEMO = "models/digits/model.onnx"
DATA = "models/digits/calib.npz"
TEST = "models/digits/test.npz"

# Picture -> its height, the page that it shows, and the commands that write this page.
PAGES = {
    "report": (1660, "report.html", [f"calibrate {DEMO} {DATA} --eval {TEST} --report report.html -o new.onnx"]),
    "refused": (1100, "none.html", [f"calibrate {DEMO} {DATA} --max-ece 0.3 --report none.html -o none.onnx"]),
    "two-classes": (1100, "binary.html", ["calibrate binary.onnx binary.npz --report binary.html"]),
    "several-labels": (1100, "labels.html", ["calibrate labels.onnx labels.npz --report labels.html"]),
    "compare": (1100, "models.html", [f"compare {DEMO} new.onnx --data {TEST} --report models.html"]),
    "study": (900, "study/index.html", [f"study {DEMO} {DATA} --eval {TEST} --out study/ --only angle --repeats 3"]),
}


def linear(path: Path, weight: NDArray[np.float32], activation: str) -> None:
    """Write a model of one linear layer and a Softmax or Sigmoid."""
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["logits"], name="head"),
        helper.make_node(activation, ["logits"], ["probabilities"]),
    ]
    shapes = {"x": ["N", weight.shape[0]], "probabilities": ["N", weight.shape[1]]}
    x, p = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(nodes, path.stem, [x], [p], [numpy_helper.from_array(weight, "weight")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)


def write_inputs(folder: Path) -> None:
    """Write the demo, an overconfident model of two classes, and one of three labels, with samples of each."""
    shutil.copytree(ROOT / "models", folder / "models")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 6)).astype(np.float32)
    pair = rng.standard_normal((6, 2)).astype(np.float32)
    linear(folder / "binary.onnx", 2 * pair, "Softmax")
    scores = x @ pair - np.array([0, 1.5], np.float32)  # positives are rarer than in training
    np.savez(folder / "binary.npz", x=x, labels=np.argmax(scores + rng.gumbel(size=scores.shape), axis=1))
    three = rng.standard_normal((6, 3)).astype(np.float32)
    linear(folder / "labels.onnx", 2 * three, "Sigmoid")
    np.savez(folder / "labels.npz", x=x, labels=(rng.logistic(size=(3000, 3)) < x @ three).astype(np.int64))


def picture(page: Path, height: int, target: Path) -> None:
    """Draw the first screen of a page with few colours."""
    drawn = page.with_suffix(".png")
    words = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{height}"]
    command = [shutil.which("chromium") or "chromium", *words, f"--screenshot={drawn}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        target, optimize=True
    )


def main() -> None:
    """Run the commands in a folder of their own, and draw their pages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        for target, (height, page, commands) in PAGES.items():
            for command in commands:
                run = [sys.executable, "-m", "tna_onnx", *command.split()]
                done = subprocess.run(run, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)  # noqa: S603
                if done.returncode > 1:  # a missed gate is what one of them shows
                    sys.exit(done.returncode)
            picture(folder / page, height, HERE / f"{target}.png")


if __name__ == "__main__":
    main()
