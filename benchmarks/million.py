"""Time and memory at N = 1,000,000, n = 512, C = 100, and at fractions of it: is the whole command linear in N?

A small network with random weights (64 inputs, 512 ReLU features, 100 classes, overconfident by a factor of 2) labels
its own samples. Each step runs in a process of its own:

- collect: `tna_onnx.features` from a mapped `.npy` into a feature store;
- calibrate: `tna_onnx.calibrate` from that store: sparse search with TS, cross-fitted report, verified file.

Of each: CPU and wall time, the largest anonymous memory (RssAnon, what the process holds) and mapped part of files
(RssFile, pages that the system may drop), seen every 5 ms, and `ru_maxrss`, the largest sum of the two as the kernel
saw it. 1 GB is 2^30 bytes. The folder needs room for 5.5 GB at N = 1,000,000.

    python benchmarks/million.py                       # 125,000, 250,000, 500,000, 1,000,000
    python benchmarks/million.py --sizes 125000 --steps calibrate
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from common import arguments, peak_memory_gb, versions
from onnx import TensorProto, helper, numpy_helper

import tna_onnx

INPUTS, FEATURES, CLASSES = 64, 512, 100
SHARPNESS = 2.0  # logits of the model over those that the labels are drawn from


def make_model(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write the classifier; return its two weights."""
    rng = np.random.default_rng(0)
    hidden = (rng.standard_normal((INPUTS, FEATURES)) / INPUTS**0.5).astype(np.float32)
    weight = (rng.standard_normal((CLASSES, FEATURES)) * SHARPNESS * 2 / FEATURES**0.5).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "hidden"], ["h"]),
            helper.make_node("Relu", ["h"], ["z"]),
            helper.make_node("Gemm", ["z", "weight", "bias"], ["logits"], name="head", transB=1),
        ],
        "million",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", INPUTS])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        [
            numpy_helper.from_array(hidden, "hidden"),
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.zeros(CLASSES, np.float32), "bias"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return hidden, weight


def make_samples(folder: Path, samples: int, hidden: np.ndarray, weight: np.ndarray) -> Path:
    """Write `x.npy` and `labels.npy`, a block at a time."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (samples, INPUTS))
    labels = np.empty(samples, np.int64)
    for start in range(0, samples, 25_000):
        part = rng.standard_normal((min(25_000, samples - start), INPUTS), np.float32)
        logits = np.maximum(part @ hidden, 0) @ (weight / SHARPNESS).T
        x[start : start + len(part)] = part
        labels[start : start + len(part)] = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    x.flush()
    np.save(folder / "labels.npy", labels)
    return folder


def step(kind: str, model: str, data: str, folder: str) -> None:
    """One step, in a process of its own: print wall, CPU, RssAnon, RssFile, ru_maxrss and a result."""
    cache = f"{folder}/cache"
    said = ""

    def collect() -> None:
        nonlocal said
        collection = tna_onnx.features(model, data, cache, device="cpu")
        said = "x".join(map(str, collection.shape))

    def calibrate() -> None:
        nonlocal said
        report = tna_onnx.calibrate(model, cache, output=f"{folder}/out.onnx", device="cpu", overwrite=True)
        said = f"{len(report.curve)} candidates; {report.verdict}"

    wall, cpu = time.perf_counter(), time.process_time()
    peaks = peak_memory_gb(collect if kind == "collect" else calibrate)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(wall, cpu, *peaks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, said, sep="\t")


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--sizes", default="125000,250000,500000,1000000")
    parser.add_argument("--steps", default="collect,calibrate")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the files lie meanwhile")
    parser.add_argument("--step", nargs=4, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.step:
        step(*a.step)
        return
    libraries = versions("tna-onnx", "onnxruntime", "numpy")
    print(f"{platform.system()}, {os.cpu_count()} cores; Python {platform.python_version()}, {libraries}\n")
    print("| N | step | wall, s | CPU, s | CPU a sample, µs | RssAnon, GB | RssFile, GB | ru_maxrss, GB | result |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for samples in map(int, a.sizes.split(",")):
        with tempfile.TemporaryDirectory(prefix="tna-onnx-benchmark-", dir=a.folder) as name:
            folder = Path(name)
            weights = make_model(folder / "model.onnx")
            data = make_samples(folder / "data", samples, *weights)
            for kind in ("collect", "calibrate"):  # the second one reads what the first one wrote
                command = [sys.executable, __file__, "--step", kind, str(folder / "model.onnx"), str(data), str(folder)]
                environment = {**os.environ, "TMPDIR": str(folder)}
                printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
                wall, cpu, anonymous, mapped, largest, said = printed.strip().split("\t")
                if kind in a.steps.split(","):
                    cells = (f"{float(wall):.1f}", f"{float(cpu):.1f}", f"{1e6 * float(cpu) / samples:.1f}")
                    memory = (f"{float(value):.2f}" for value in (anonymous, mapped, largest))
                    print(f"| {samples:,} | {kind} | {' | '.join((*cells, *memory))} | {said} |", flush=True)


if __name__ == "__main__":
    main()
