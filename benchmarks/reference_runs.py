"""Run the command line over many models and settings and write what came out, so that two commits can be compared.

    python benchmarks/reference_runs.py out/before [--cifar10 FOLDER] [--only NAME,...]
    python benchmarks/reference_runs.py out/after  [--cifar10 FOLDER]
    diff -r out/before out/after

Every run leaves a folder with the command's exit code, standard output, standard error, JSON and the SHA-256 of the
files that it wrote. Commands run in a folder of their own with relative paths, on the CPU, with fixed seeds, so an
unchanged program gives the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from common import arguments
from onnx import TensorProto, helper, numpy_helper

DIGITS = Path(__file__).resolve().parents[1] / "models" / "digits"
HELD_OUT = "--calib calib.npz --eval test.npz"
CROSS = "--calib calib.npz"
CIFAR = "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"

RUNS = {
    "demo": f"calibrate model.onnx {HELD_OUT}",
    "demo-inspect": "inspect model.onnx",
    "demo-evaluate": "evaluate model.onnx --data test.npz --json JSON",
    "demo-none": f"calibrate model.onnx {HELD_OUT} --map none",
    "demo-ets": f"calibrate model.onnx {HELD_OUT} --map ets",
    "demo-isotonic": f"calibrate model.onnx {HELD_OUT} --map isotonic",
    "demo-aar": f"calibrate model.onnx {HELD_OUT} --map aar",
    "demo-auto": f"calibrate model.onnx {HELD_OUT} --map auto",
    "demo-cross": f"calibrate model.onnx {CROSS}",
    "demo-cross-auto": f"calibrate model.onnx {CROSS} --search none --map auto",
    "complete-ts": f"calibrate model.onnx {HELD_OUT} --search complete --map ts",
    "complete-ets-nll": f"calibrate model.onnx {HELD_OUT} --search complete --map ets",
    "complete-cross": f"calibrate model.onnx {CROSS} --search complete --map ts --ensemble-size 4",
    "none-ts": f"calibrate model.onnx {HELD_OUT} --search none",
    "none-aar": f"calibrate model.onnx {CROSS} --search none --map aar",
    "none-isotonic": f"calibrate model.onnx {CROSS} --search none --map isotonic",
    "limit": f"calibrate model.onnx {HELD_OUT} --ensemble-size inf",
    "nll-full-grid": f"calibrate model.onnx {HELD_OUT} --objective nll --ensemble-size 20",
    "adaece": f"calibrate model.onnx {HELD_OUT} --objective adaece --bins 10",
    "details": f"calibrate model.onnx {HELD_OUT} --report out.html",
    "refused-gate": f"calibrate model.onnx {HELD_OUT} --max-ece 0.5",
    "refused-data": "calibrate model.onnx --calib nowhere/",
    "refused-flag": "calibrate model.onnx --calib calib.npz --bins 0",
    "refused-same": "calibrate model.onnx --calib calib.npz --eval calib.npz",
    "dry-run": f"calibrate model.onnx {HELD_OUT} --dry-run",
    "probabilities": f"calibrate probabilities.onnx {HELD_OUT} --map ets",
    "external": f"calibrate external.onnx {HELD_OUT}",
    "quantised": f"calibrate quantised.onnx {HELD_OUT}",
    "quantised-float": f"calibrate quantised.onnx {HELD_OUT} --quantized-head float",
    "binary": "calibrate binary.onnx --calib binary-calib.npz --eval binary-test.npz",
    "binary-isotonic": "calibrate binary.onnx --calib binary-calib.npz --search none --map isotonic",
    "tail": "calibrate tail.onnx --calib calib.npz --eval test.npz --ensemble-size 6",
    "store": "features model.onnx --data calib.npz --cache features --json JSON",
    "store-calibrate": "calibrate model.onnx --calib features --eval test.npz",
    "cached": f"calibrate model.onnx {HELD_OUT} --cache cache",
    "compare": "compare model.onnx demo/model.tna.onnx --data test.npz --json JSON",
    "verify": "verify model.onnx demo/model.tna.onnx --data test.npz --json JSON",
    "cifar-wide": f"calibrate resnet20-wide.onnx --calib calib --eval test {CIFAR}",
    "cifar-wide-none": f"calibrate resnet20-wide.onnx --calib calib --eval test {CIFAR} --map none",
    "cifar-small": f"calibrate resnet20.onnx --calib calib --eval test {CIFAR} --search none --map auto",
    "cifar-small-members": f"calibrate resnet20.onnx --calib calib --eval test {CIFAR} --ensemble-size 160",
    "cifar-small-cross": f"calibrate resnet20.onnx --calib calib {CIFAR} --ensemble-size 40",
}


def main() -> None:
    """Make the models, run the commands, keep what they give."""
    parser = arguments(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cifar10", type=Path, help="folder with calib/, test/, resnet20.onnx and resnet20-wide.onnx")
    parser.add_argument("--only", help="names of runs, with commas")
    a = parser.parse_args()
    wanted = a.only.split(",") if a.only else list(RUNS)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make_models(place)
        if a.cifar10:
            for path in a.cifar10.resolve().iterdir():
                (place / path.name).symlink_to(path)
        for name in wanted:
            if name.startswith("cifar") and not a.cifar10:
                continue
            keep(name, place, a.out / name)


def keep(name: str, place: Path, out: Path) -> None:
    """Run one command in `place` and write its results to `out`."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    json_file = place / f"{name}.json"
    words = RUNS[name].replace("JSON", json_file.name).split()
    if words[0] == "calibrate":
        target = place / name / "model.tna.onnx"
        target.parent.mkdir(exist_ok=True)
        words += ["-o", str(target.relative_to(place)), "--json", json_file.name]
    if words[0] in ("calibrate", "evaluate", "features", "compare", "verify"):
        words += ["--device", "cpu"]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "tna_onnx", *words], cwd=place, env=environment, capture_output=True, check=False
    )
    (out / "code").write_text(f"{done.returncode}\n", encoding="utf-8")
    (out / "stdout").write_bytes(done.stdout)
    (out / "stderr").write_bytes(done.stderr)
    if json_file.exists():
        shutil.copy(json_file, out / "result.json")
    written = [place / name] if (place / name).exists() else []
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(place)}\n"
        for root in written
        for path in sorted(root.rglob("*"))
        if path.is_file()
    ]
    (out / "sha256").write_text("".join(lines), encoding="utf-8")
    print(name, done.returncode, flush=True)


def make_models(place: Path) -> None:
    """Write the demo model in several forms, and its data."""
    for path in (*DIGITS.glob("*.npz"), DIGITS / "model.onnx"):
        shutil.copy(path, place)
    for name in ("probabilities", "tail"):
        model = onnx.load(DIGITS / "model.onnx")
        onnx.save(with_softmax(model) if name == "probabilities" else with_tail(model), place / f"{name}.onnx")
    external = onnx.load(DIGITS / "model.onnx")
    onnx.save(external, place / "external.onnx", save_as_external_data=True, location="weights.bin", size_threshold=64)
    onnx.save(with_quantised_head(onnx.load(DIGITS / "model.onnx")), place / "quantised.onnx")
    make_binary(place)


def with_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that gives probabilities."""
    graph = model.graph
    logits = graph.output[0].name
    graph.node.append(helper.make_node("Softmax", [logits], ["probabilities"], name="softmax", axis=1))
    graph.output[0].name = "probabilities"
    return model


def with_tail(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose logits only the graph can compute: they are clipped behind the head."""
    graph = model.graph
    logits = graph.output[0].name
    for name, value in (("low", -60.0), ("high", 60.0)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    graph.node.append(helper.make_node("Clip", [logits, "low", "high"], ["clipped"], name="clip"))
    graph.output[0].name = "clipped"
    return model


def with_quantised_head(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose last weight is stored as int8 with a DequantizeLinear behind it."""
    graph = model.graph
    head = graph.node[-1]
    stored = next(tensor for tensor in graph.initializer if tensor.name == head.input[1])
    weight = numpy_helper.to_array(stored)
    scale = np.float32(np.abs(weight).max() / 127)
    integers = np.clip(np.round(weight / scale), -127, 127).astype(np.int8)
    graph.initializer.remove(stored)
    arrays: dict[str, np.ndarray] = {"wq": integers, "ws": np.array(scale), "wz": np.array(0, np.int8)}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    node = helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], [stored.name], name="dequantize")
    graph.node.insert(len(graph.node) - 1, node)
    return model


def make_binary(place: Path) -> None:
    """Write an overconfident binary model with one logit and a Sigmoid, and data of its own."""
    draw = np.random.default_rng(7)
    direction = draw.standard_normal(12).astype(np.float32)
    for name, n in (("calib", 1500), ("test", 1500)):
        x = draw.standard_normal((n, 12)).astype(np.float32)
        labels = (x @ direction + 3 * draw.logistic(size=n) > 0).astype(np.int64)
        np.savez(place / f"binary-{name}.npz", x=x, labels=labels)
    mixing = np.linalg.qr(draw.standard_normal((12, 12)))[0].astype(np.float32)
    tensors = {"mixing": mixing, "weight": (mixing.T @ direction)[:, None], "bias": np.zeros(1, np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "mixing"], ["features"], name="mix"),
            helper.make_node("Gemm", ["features", "weight", "bias"], ["logit"], name="head"),
            helper.make_node("Sigmoid", ["logit"], ["probability"], name="sigmoid"),
        ],
        "binary",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 12])],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), place / "binary.onnx"
    )


if __name__ == "__main__":
    main()
