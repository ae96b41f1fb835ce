"""CPU time of `features` and `inspect` over a bare pass of ONNX Runtime over the same samples, on small models.

Networks with random weights are built here: a small CNN, a MobileNetV2 with its batch normalisations, and an encoder
of eight layers written out node by node. Samples lie in `.npy` files. In turn, a round after the other:

- bare: open a session, run all batches of 64, and nothing else; in this process, and as a command (`python -c`), which
  imports NumPy and ONNX Runtime first;
- features: `tna_onnx.features` into a new store in this process, after a first run that is not counted; and
  `tna-onnx features` as a command;
- inspect: the same of `inspect`, which runs nothing.

CPU time is user + system of all threads. It does not depend on what else the machine does as wall time does, but is
longer where others share its caches. The goal of a collection: at most 3 times the bare pass plus 2 s. The column
`of the goal` is its share, of this process and of the command.

    python benchmarks/overhead.py                 # 3 rounds
    python benchmarks/overhead.py --rounds 7 --samples 1024
"""

from __future__ import annotations

import itertools
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from collection import Net
from common import arguments, markdown, versions
from onnx import numpy_helper

import tna_onnx

BATCH = 64
BARE = """
import sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
samples = np.load(sys.argv[2] + "/input.npy", mmap_mode="r")
for start in range(0, len(samples), int(sys.argv[3])):
    session.run(None, {"input": np.asarray(samples[start : start + int(sys.argv[3])])})
"""


class Layers(Net):
    """A graph in the making, with what exporters write as several nodes."""

    def integers(self, *values: int) -> str:
        """Store whole numbers, such as a shape."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def number(self, value: float) -> str:
        """Store one number."""
        return self.constant(np.array(value))

    def unfolded(self, x: str, c_in: int, c_out: int, size: int, stride: int = 1, groups: int = 1) -> str:
        """Convolution and batch normalisation, and the Identity of a dropout behind them."""
        ones = self.constant(np.ones(c_out))
        zeros = self.constant(np.zeros(c_out))
        y = self.conv(x, c_in, c_out, size, stride, groups)
        return self.add("Identity", self.add("BatchNormalization", y, ones, zeros, zeros, ones))

    def linear(self, x: str, c_in: int, c_out: int) -> str:
        """A product at each position, and its bias."""
        weight = self.constant(self.rng.standard_normal((c_in, c_out), np.float32) / np.sqrt(c_in))
        return self.add("Add", self.add("MatMul", x, weight), self.constant(np.zeros(c_out)))

    def layer_norm(self, x: str, width: int) -> str:
        """Layer normalisation in eight nodes."""
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        variance = self.add("ReduceMean", self.add("Mul", centred, centred), axes=[-1])
        scale = self.add("Sqrt", self.add("Add", variance, self.number(1e-5)))
        y = self.add("Mul", self.add("Div", centred, scale), self.constant(np.ones(width)))
        return self.add("Add", y, self.constant(np.zeros(width)))

    def gelu(self, x: str) -> str:
        """x (1 + erf(x / sqrt 2)) / 2."""
        erf = self.add("Erf", self.add("Div", x, self.number(2**0.5)))
        return self.add("Mul", self.add("Mul", x, self.add("Add", erf, self.number(1.0))), self.number(0.5))


def small_cnn(path: Path) -> Path:
    """Five convolutions, n = 256."""
    net = Layers()
    x = "input"
    width = 3
    for channels, stride in ((32, 2), (64, 2), (128, 2), (256, 2), (256, 1)):
        x = net.add("Relu", net.conv(x, width, channels, 3, stride))
        width = channels
    return net.save(path, x, width, 10)


def mobile(path: Path) -> Path:
    """MobileNetV2 with its batch normalisations, n = 1280."""
    net = Layers()
    low = net.number(0.0)
    high = net.number(6.0)
    x = net.add("Clip", net.unfolded("input", 3, 32, 3, 2), low, high)
    width = 32
    for expand, channels, blocks, first in [
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ]:  # fmt: skip
        for block in range(blocks):
            stride = 1 if block else first
            inner = expand * width
            y = net.add("Clip", net.unfolded(x, width, inner, 1), low, high)
            y = net.add("Clip", net.unfolded(y, inner, inner, 3, stride, inner), low, high)
            y = net.unfolded(y, inner, channels, 1)
            if stride == 1 and width == channels:
                y = net.add("Add", x, y)
            x = y
            width = channels
    x = net.add("Clip", net.unfolded(x, width, 1280, 1), low, high)
    return net.save(path, x, 1280, 1000)


def encoder(path: Path, width: int = 128, layers: int = 8) -> Path:
    """Patches of 8 x 8, then layers of attention with one head, written out node by node; n = 128."""
    net = Layers()
    x = net.add("Reshape", net.conv("input", 3, width, 8, 8), net.integers(0, width, -1))
    x = net.add("Transpose", x, perm=[0, 2, 1])
    for _ in range(layers):
        y = net.layer_norm(x, width)
        q, k, v = (net.linear(y, width, width) for _ in range(3))
        scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 2, 1]))
        shares = net.add("Softmax", net.add("Div", scores, net.number(width**0.5)), axis=-1)
        x = net.add("Add", x, net.linear(net.add("MatMul", shares, v), width, width))
        y = net.gelu(net.linear(net.layer_norm(x, width), width, 4 * width))
        x = net.add("Add", x, net.linear(y, 4 * width, width))
    # an image again, which `save` averages over: (N, width, 1, P)
    x = net.add("Unsqueeze", net.add("Transpose", x, perm=[0, 2, 1]), net.integers(2))
    return net.save(path, x, width, 1000)


@dataclass(frozen=True)
class Case:
    """A network, and how large its images are."""

    name: str
    make: Callable[[Path], Path]
    side: int
    share: int  # of the samples that are asked for, one in so many


CASES = (Case("small CNN", small_cnn, 32, 1), Case("MobileNetV2", mobile, 96, 8), Case("encoder", encoder, 64, 2))


def make_data(folder: Path, model: Path, side: int, samples: int) -> Path:
    """Write images and labels, of which the network gets four in five right."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    images = rng.standard_normal((samples, 3, side, side), np.float32)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    logits = [session.run(None, {"input": images[k : k + BATCH]})[0] for k in range(0, samples, BATCH)]
    labels = np.concatenate(logits).argmax(axis=1)
    wrong = rng.random(samples) < 0.2
    labels[wrong] = rng.integers(0, logits[0].shape[1], int(wrong.sum()))
    np.save(folder / "input.npy", images)
    np.save(folder / "labels.npy", labels)
    return folder


def bare(model: Path, data: Path) -> None:
    """Do what the command does, in this process."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    samples = np.load(data / "input.npy", mmap_mode="r")
    for start in range(0, len(samples), BATCH):
        session.run(None, {"input": np.asarray(samples[start : start + BATCH])})


def cpu(run: Callable[[], object]) -> float:
    """CPU seconds of a call in this process."""
    start = time.process_time()
    run()
    return time.process_time() - start


def cpu_of_command(*command: str) -> float:
    """CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(case: Case, folder: Path, samples: int, rounds: int) -> list[str]:
    """Return the row of a network: medians of the rounds."""
    model = case.make(folder / "model.onnx")
    data = make_data(folder / "data", model, case.side, samples // case.share)
    tool = (sys.executable, "-m", "tna_onnx")
    stores = (str(folder / f"store-{k}") for k in itertools.count())
    runs: dict[str, Callable[[], float]] = {
        "bare": lambda: cpu(lambda: bare(model, data)),
        "features": lambda: cpu(lambda: tna_onnx.features(model, data, next(stores), device="cpu")),
        "inspect": lambda: cpu(lambda: tna_onnx.inspect(model)),
        "bare command": lambda: cpu_of_command(sys.executable, "-c", BARE, str(model), str(data), str(BATCH)),
        "features command": lambda: cpu_of_command(
            *tool, "features", str(model), str(data), "--cache", next(stores), "--device", "cpu"
        ),
        "inspect command": lambda: cpu_of_command(*tool, "inspect", str(model)),
    }
    for run in runs.values():  # what comes first pays for imports, compiled files and untouched memory
        run()
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken[name].append(run())
    median = {name: statistics.median(values) for name, values in taken.items()}
    goals = [median[f"features{how}"] / (3 * median[f"bare{how}"] + 2) for how in ("", " command")]
    size = model.stat().st_size / 1e6
    nodes = len(onnx.load(model).graph.node)
    row = [case.name, f"{size:.1f}", f"{nodes}", f"{samples // case.share:,}"]
    row += [f"{median[name]:.2f}" for name in ("bare", "features")]
    row += [f"{median['features'] / median['bare']:.2f}", f"{median['inspect']:.3f}"]
    row += [f"{median[f'{name} command']:.2f}" for name in ("bare", "features", "inspect")]
    row += [f"{goal:.2f}" for goal in goals]
    print(row, file=sys.stderr)
    return row


HEAD = [
    "network", "MB", "nodes", "samples", "bare, s", "features, s", "features / bare", "inspect, s",
    "bare command, s", "features command, s", "inspect command, s", "of the goal", "of the goal, command",
]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4096, help="of the small CNN; the others see a part of them")
    a = parser.parse_args()
    rows = []
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="tna-onnx-benchmark-") as name:
            rows.append(measure(case, Path(name), a.samples, a.rounds))
    libraries = versions("tna-onnx", "onnx", "onnxruntime", "numpy")
    print(
        f"{platform.system()}, {os.cpu_count()} cores; Python {platform.python_version()}, {libraries}; CPU seconds\n"
    )
    print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
