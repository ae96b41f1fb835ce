"""What is written for CUDA, checked and timed on a machine that has it; one JSON file, whatever fails.

- session: the demo model on CUDA, its outputs against those of the CPU, and which nodes run elsewhere;
- tf32: how far ONNX Runtime's default (TF32 on, as deployed) moves outputs, and `--device cuda,tf32=off`;
- spread: how far outputs of a sample move with the batch that it is in;
- limits: free memory of the device around a session, with `--device cuda,memory=GIB` and without;
- bfloat16, float16: heads of these types, collected on CUDA;
- calibrate: the demo from end to end, on CUDA and on the CPU: angle, members, held-out figures, files;
- memory: features that do not fit, and a torch that is out of memory: the same result, with a note;
- search: sparse and complete searches at the size of ImageNet in torch, against NumPy on the host;
- auto: the default choice at a tenth of that size, on both.

Each check runs in a process of its own, cheap ones first, with a time limit each and 45 minutes for all. Its verdict is
pass, fail or skipped, with the reason; the file is whole after each.

    python benchmarks/gpu.py --output gpu.json
    python benchmarks/gpu.py --device cpu --samples 500 --features 64 --classes 20   # is the script itself right?
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from common import arguments, timed
from onnx import TensorProto, helper, numpy_helper
from problems import make

import tna_onnx
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.engine.placement import Host, OnDevice, Placement
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.pipeline import opening
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.runtime import Device, Session, free_device_memory, open_session, parse_device
from tna_onnx.search.candidates import SearchSettings

DEMO = Path(__file__).parent.parent / "models" / "digits"
DISTRIBUTIONS = ("numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "tna-onnx", "torch")


def environment(_: argparse.Namespace) -> dict[str, Any]:
    """Versions of libraries and driver, and the device."""
    found = {name: metadata.version(name) for name in DISTRIBUTIONS if _installed(name)}
    device = "none"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    return {
        "python": platform.python_version(),
        **found,
        "torch's CUDA": torch.version.cuda,
        "torch's cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call,unused-ignore]
        "driver": _driver(),
        "device": device,
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def session(a: argparse.Namespace) -> dict[str, Any]:
    """Outputs of the demo on the device, against those of the CPU."""
    x = np.load(DEMO / "test.npz")
    opened = {name: open_session(DEMO / "model.onnx", "demo", Device(name)) for name in (a.device, "cpu")}
    feeds = {info.name: x[info.name] for info in opened["cpu"].inputs}
    names = opened["cpu"].outputs
    there, here = (opened[name].run(names, feeds)[0] for name in (a.device, "cpu"))
    return {
        "provider": opened[a.device].provider,
        "nodes on the CPU": opened[a.device].elsewhere,
        "largest difference": float(np.max(np.abs(there - here))),
        "labels that differ": int(np.sum(np.argmax(there, axis=1) != np.argmax(here, axis=1))),
    }


def tf32(a: argparse.Namespace) -> dict[str, Any]:
    """Largest difference from the CPU of a product of the head's size, with TF32 and without."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((a.features, a.classes)).astype(np.float32)
    x = rng.standard_normal((64, a.features)).astype(np.float32)
    model = _product(weight, TensorProto.FLOAT).SerializeToString()
    expected = x.astype(np.float64) @ weight.astype(np.float64)
    found = {}
    for switch in (0, 1):
        providers: list[Any] = ["CPUExecutionProvider"]
        if a.device == "cuda":
            providers = [("CUDAExecutionProvider", {"use_tf32": switch}), *providers]
        got = onnxruntime.InferenceSession(model, providers=providers).run(None, {"x": x})[0]
        found[f"use_tf32={switch}"] = float(np.max(np.abs(got - expected)))
    return found


def spread(a: argparse.Namespace) -> dict[str, Any]:
    """Largest change of an output, over the largest output, between batches of 64 and of other sizes."""
    x = np.load(DEMO / "test.npz")
    found = {}
    for tf32 in ("as-deployed", "off"):
        opened = open_session(DEMO / "model.onnx", "demo", parse_device(f"{a.device},tf32={tf32}"))
        feeds = {info.name: x[info.name][:512] for info in opened.inputs}
        whole = _in_batches(opened, feeds, 64)
        for size in (1, 37, 63, 65, 512):
            moved = np.max(np.abs(_in_batches(opened, feeds, size) - whole))
            found[f"tf32 {tf32}, batches of {size}"] = float(moved / np.max(np.abs(whole)))
    return found


def _in_batches(opened: Session, feeds: dict[str, Any], size: int) -> Any:
    count = len(next(iter(feeds.values())))
    parts = [
        opened.run(opened.outputs[:1], {name: array[start : start + size] for name, array in feeds.items()})[0]
        for start in range(0, count, size)
    ]
    return np.concatenate(parts).astype(np.float64)


def limits(a: argparse.Namespace) -> dict[str, Any]:
    """Free bytes of the device before, beside and after a session that has run, with 1 GiB and with all of it."""
    x = np.load(DEMO / "test.npz")
    found: dict[str, Any] = {}
    for device in (a.device, f"{a.device},memory=1"):
        before = free_device_memory(0)
        opened = open_session(DEMO / "model.onnx", "demo", parse_device(device))
        opened.run(opened.outputs[:1], {info.name: x[info.name] for info in opened.inputs})
        beside = free_device_memory(0)
        del opened
        found[device] = {"before": before, "beside": beside, "after": free_device_memory(0)}
    return found


def _product(weight: np.ndarray, element: int) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    stored = helper.make_tensor("w", element, weight.shape, weight.ravel())
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=element),
        helper.make_node("MatMul", ["f", "w"], ["z"]),
        helper.make_node("Cast", ["z"], ["logits"], to=TensorProto.FLOAT),
    ]
    classes = weight.shape[1]
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, ["N", len(weight)])],
        [info("logits", TensorProto.FLOAT, ["N", classes])], [stored],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def typed_head(element: int, a: argparse.Namespace) -> dict[str, Any]:
    """A head of another type, from end to end."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((32, 7)).astype(np.float32)
    x = rng.standard_normal((2000, 32)).astype(np.float32)
    labels = np.argmax(x @ weight / 2 + rng.gumbel(size=(2000, 7)), axis=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(_product(weight, element), path)
        output = Path(folder) / "out.onnx"
        report = tna_onnx.calibrate(
            path, {"x": x[:1000], "labels": labels[:1000]}, eval={"x": x[1000:], "labels": labels[1000:]},
            output=output, device=a.device,
        )  # fmt: skip
    return {"verdict": report.verdict, "notes": list(report.notes)}


def calibrate(a: argparse.Namespace) -> dict[str, Any]:
    """The demo from end to end on the device and on the CPU."""
    found: dict[str, Any] = {}
    weights = []
    for device in (a.device, "cpu"):
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "out.onnx"
            run = functools.partial(
                tna_onnx.calibrate, DEMO / "model.onnx", DEMO / "calib.npz", eval=DEMO / "test.npz", output=output,
                device=device, search="sparse",
            )  # fmt: skip
            report = run()
            found[f"{device}: verdict"] = report.verdict
            found[f"{device}: notes"] = list(report.notes)
            weights.append([numpy_helper.to_array(t) for t in onnx.load(output).graph.initializer])
    same = all(np.array_equal(one, other) for one, other in zip(*weights, strict=True))
    return {**found, "the same tensors": same}


def memory(a: argparse.Namespace) -> dict[str, Any]:
    """A device without room: features stay on the host, and a product that fails sends all to the host."""

    class Full(OnDevice):
        def put(self, array: Any) -> Any:
            if array.size > 1000:
                raise torch.OutOfMemoryError("CUDA out of memory (made up)")
            return super().put(array)

    found = {}
    before = vars(opening)["placement_of"]
    try:
        for name, placement in (("no room for features", _without_room(a)), ("out of memory", Full(torch, a.device))):
            vars(opening)["placement_of"] = functools.partial(_always, placement)
            with tempfile.TemporaryDirectory() as folder:
                report = tna_onnx.calibrate(
                    DEMO / "model.onnx",
                    DEMO / "calib.npz",
                    output=Path(folder) / "o.onnx",
                    device=a.device,
                    search="sparse",
                )
            found[name] = {"verdict": report.verdict, "notes": list(report.notes)}
    finally:
        vars(opening)["placement_of"] = before
    return found


def _always(placement: Placement, *_: object) -> Placement:
    return placement


def _without_room(a: argparse.Namespace) -> OnDevice:
    placement = OnDevice(torch, a.device)
    placement._free = lambda: 0  # type: ignore[method-assign]
    return placement


def _logits(table: FeatureTable, bias: np.ndarray, placement: Placement, weight: Any) -> HeadLogits:
    return HeadLogits(table, weight, bias, placement)


def search(a: argparse.Namespace) -> dict[str, Any]:
    """Seconds of sparse and complete searches on the device and on the host; a first turn of each is not counted."""
    table, weight, bias = make(a.samples, a.features, a.classes, lean=0.125, sharpness=0.15)
    found: dict[str, Any] = {}
    places: dict[str, Placement] = {a.device: OnDevice(torch, a.device), "host": Host()}
    for kind, name in (("sparse", "none"), ("complete", "ts")):
        for where, placement in places.items():
            logits_of = functools.partial(_logits, table, bias, placement)
            strategy = Strategy(logits_of, weight, kind, name, replace(SearchSettings(), angle_step=2.0))
            outcomes: list[Outcome] = []

            def run(strategy: Strategy = strategy, outcomes: list[Outcome] = outcomes) -> None:
                outcomes.append(strategy.run(lambda *_: None))

            turns = [timed(run) for _ in range(a.repeats + 1)]
            chosen = outcomes[-1].chosen
            found[f"{kind} {name}, {where}"] = {
                "seconds": turns[1:], "angle": chosen.angle, "members": chosen.ensemble_size,
                "candidates": len(outcomes[-1].candidates),
            }  # fmt: skip
    return found


def _run(strategy: Strategy, outcomes: list[Outcome]) -> None:
    outcomes.append(strategy.run(lambda *_: None))


def auto(a: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the default choice on the device and on the host."""
    table, weight, bias = make(a.samples // 10, a.features // 4, a.classes // 10, lean=0.125, sharpness=0.15)
    found: dict[str, Any] = {}
    places: dict[str, Placement] = {a.device: OnDevice(torch, a.device), "host": Host()}
    for where, placement in places.items():
        strategy = Strategy(
            functools.partial(_logits, table, bias, placement), weight, "auto", "auto", SearchSettings(objective="nll")
        )
        outcomes: list[Outcome] = []
        seconds = timed(functools.partial(_run, strategy, outcomes))
        found[where] = {"seconds": seconds, "chosen": outcomes[-1].label}
    return found


CHECKS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "environment": environment,
    "session": session,
    "tf32": tf32,
    "bfloat16": functools.partial(typed_head, TensorProto.BFLOAT16),
    "float16": functools.partial(typed_head, TensorProto.FLOAT16),
    "calibrate": calibrate,
    "memory": memory,
    "spread": spread,
    "limits": limits,
    "auto": auto,
    "search": search,
}
LIMITS = {"calibrate": 600, "memory": 600, "auto": 600, "search": 1200}
_LIMIT = 240  # seconds of every other check
_ALL = 45 * 60


def run_apart(name: str, a: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Run a check in a process of its own, and return its verdict with what it found."""
    if limit <= 0:
        return {"verdict": "skipped", "why": f"the {_ALL // 60} minutes of all checks are over"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        sizes = [f"--{word}={getattr(a, word)}" for word in ("device", "samples", "features", "classes", "repeats")]
        command = [sys.executable, __file__, "--child", name, "--output", str(path), *sizes]
        start = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
        except subprocess.TimeoutExpired:
            return {"verdict": "fail", "why": f"took longer than {limit:.0f} seconds"}
        seconds = {"seconds": round(time.monotonic() - start, 1)}
        if not path.is_file():
            said = (done.stderr or done.stdout)[-4000:]
            return {"verdict": "fail", "why": f"ended with {done.returncode}", "said": said, **seconds}
        return {**json.loads(path.read_text("utf-8")), **seconds}


def child(name: str, a: argparse.Namespace) -> dict[str, Any]:
    """Run a check in this process."""
    if a.device == "cuda" and name != "environment" and not torch.cuda.is_available():
        return {"verdict": "skipped", "why": "torch sees no CUDA device"}
    if a.device == "cpu" and name == "bfloat16":
        return {"verdict": "skipped", "why": "ONNX Runtime has no kernels of bfloat16 for the CPU"}
    try:
        return {"verdict": "pass", "found": CHECKS[name](a)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the verdict
        return {"verdict": "fail", "why": f"{type(error).__name__}: {error}", "said": traceback.format_exc()}


def main() -> None:
    """Run every check in a process of its own; a failure is part of the result."""
    parser = arguments(__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", choices=[*CHECKS], action="append")
    parser.add_argument("--child", choices=[*CHECKS], help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=int, default=12_500)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    a = parser.parse_args()
    if a.child:
        a.output.write_text(json.dumps(child(a.child, a)), encoding="utf-8")
        return
    found: dict[str, Any] = {}
    end = time.monotonic() + _ALL
    for name in a.only or CHECKS:
        found[name] = run_apart(name, a, min(LIMITS.get(name, _LIMIT), end - time.monotonic()))
        if a.output:
            beside = a.output.with_name(f"{a.output.name}.part")
            beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            beside.replace(a.output)
        print(f"{name}: {found[name]['verdict']} {found[name].get('why', '')}", flush=True)


if __name__ == "__main__":
    main()
