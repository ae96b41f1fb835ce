"""What is written for CUDA, checked and timed on a machine that has it; one JSON file, whatever fails.

Checks with torch alone, where ONNX Runtime is on the CPU:

- environment: versions, driver, device;
- maps: every map fitted on the device and on the host;
- memory: features that do not fit, and a torch that is out of memory: the same result, with a note;
- placed: the demo with its search on the device and on the host: weights and metrics;
- size: seconds of one pass by the number of multiplications, from which a device is worth its start;
- sparse, complete, auto: searches at the size of ImageNet, and the default choice at a tenth of it; those whose names
  end with `-host` in NumPy, to compare with.

And with ONNX Runtime on CUDA:

- runtime: which build of ONNX Runtime it is;
- session: the demo's outputs against those of the CPU;
- calibrate: the demo from end to end, with TF32 on and off, against the CPU: features, weights and metrics;
- forest: a model without a linear head, with text as labels;
- bfloat16, float16: heads of these types;
- tf32: how far ONNX Runtime's default (TF32 on, as deployed) moves the product of a head;
- spread: how far outputs of a sample move with the batch that it is in;
- limits: free memory of the device around a session, with `--device cuda,memory=GIB` and without.

Each check runs in a process of its own, those of most worth first, with at most eight minutes. Its verdict is pass,
fail or skipped, with the reason; the file is whole after each, and keeps the checks that are not run again.

    python benchmarks/gpu.py --output gpu.json
    python benchmarks/gpu.py --device cpu --samples 500 --features 64 --classes 20   # is the script itself right?
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
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
from tna_onnx.maps import MAPS, maps_of
from tna_onnx.pipeline import opening
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.runtime import Device, Session, open_session, parse_device
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
        "onnxruntime from": onnxruntime.__file__,
        "providers": onnxruntime.get_available_providers(),
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
        before = torch.cuda.mem_get_info()[0]
        opened = open_session(DEMO / "model.onnx", "demo", parse_device(device))
        opened.run(opened.outputs[:1], {info.name: x[info.name] for info in opened.inputs})
        beside = torch.cuda.mem_get_info()[0]
        del opened
        found[device] = {"before": before, "beside": beside, "after": torch.cuda.mem_get_info()[0]}
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
    return _ends(_product(weight, element), x, labels, a)


def _ends(model: onnx.ModelProto, x: np.ndarray, labels: np.ndarray, a: argparse.Namespace) -> dict[str, Any]:
    """Calibrate a model from end to end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        report = tna_onnx.calibrate(
            path, {"x": x[:1000], "labels": labels[:1000]}, eval={"x": x[1000:], "labels": labels[1000:]},
            output=Path(folder) / "out.onnx", device=a.device,
        )  # fmt: skip
    return {"provider": report.provider, "verdict": report.verdict, "notes": list(report.notes)}


def calibrate(a: argparse.Namespace) -> dict[str, Any]:
    """The demo with TF32 as deployed, without, and on the CPU: metrics, and what is furthest from the CPU's."""
    return _compared({device: (device, None) for device in ("cpu", a.device, f"{a.device},tf32=off")})


def placed(a: argparse.Namespace) -> dict[str, Any]:
    """The demo with its search on the host and on the device, behind features of the CPU."""
    return _compared({"host": ("cpu", Host()), a.device: ("cpu", OnDevice(torch, a.device))})


def _compared(runs: dict[str, tuple[str, Placement | None]]) -> dict[str, Any]:
    """Calibrate the demo in several ways, the first one to compare with."""
    found: dict[str, Any] = {}
    arrays: list[dict[str, np.ndarray]] = []
    with np.load(DEMO / "test.npz") as file:
        images = {"image": file["image"]}
    for name, (device, placement) in runs.items():
        with tempfile.TemporaryDirectory() as folder, placed_on(placement):
            run = functools.partial(
                tna_onnx.calibrate, DEMO / "model.onnx", DEMO / "calib.npz", eval=DEMO / "test.npz",
                output=Path(folder) / "out.onnx", device=device, search="sparse", map="none",
            )  # fmt: skip
            start = time.perf_counter()
            report = run()
            seconds = time.perf_counter() - start
            stored = onnx.load(report.output).graph.initializer
        features = tna_onnx.FeatureExtractor(DEMO / "model.onnx", device=device)(images)["features"]
        arrays.append({"features": features, **{t.name: numpy_helper.to_array(t) for t in stored}})
        after = report.comparison.after
        found[name] = {
            "seconds": seconds, "angle": report.angle, "members": report.ensemble_size, "nll": after.nll,
            "ece": after.ece, "notes": list(report.notes), "checked within": report.verification.max_difference,
            "moved by": _moved(arrays[-1], arrays[0]),
        }  # fmt: skip
    return found


def _moved(arrays: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of each array that is not the same, over the largest entry."""
    return {
        name: float(np.max(np.abs(array - others[name])) / np.max(np.abs(array)))
        for name, array in arrays.items()
        if not np.array_equal(array, others[name])
    }


@contextlib.contextmanager
def placed_on(placement: Placement | None) -> Iterator[None]:
    """Search there in this block; None for what the package chooses."""
    before = vars(opening)["placement_of"]
    if placement is not None:
        vars(opening)["placement_of"] = lambda *_: placement
    try:
        yield
    finally:
        vars(opening)["placement_of"] = before


def memory(a: argparse.Namespace) -> dict[str, Any]:
    """A device without room: features stay on the host, and a product that fails sends all to the host."""

    class Full(OnDevice):
        def put(self, array: Any) -> Any:
            if array.size > 1000:
                raise torch.OutOfMemoryError("CUDA out of memory (made up)")
            return super().put(array)

    found = {}
    for name, placement in (("no room for features", _without_room(a)), ("out of memory", Full(torch, a.device))):
        with tempfile.TemporaryDirectory() as folder, placed_on(placement):
            report = tna_onnx.calibrate(
                DEMO / "model.onnx", DEMO / "calib.npz", output=Path(folder) / "o.onnx", device="cpu", search="sparse",
                map="ts",
            )  # fmt: skip
        found[name] = {"verdict": report.verdict, "notes": list(report.notes)}
    return found


def _without_room(a: argparse.Namespace) -> OnDevice:
    placement = OnDevice(torch, a.device)
    placement._free = lambda: 0  # type: ignore[method-assign]
    return placement


def maps(a: argparse.Namespace) -> dict[str, Any]:
    """NLL under every map, fitted on the device and on the host."""
    found = {}
    for classes in (2, 5):
        table, weight, bias = make(1000, 32, classes, lean=0.125, sharpness=0.15)
        for name in sorted(maps_of(classes)):
            kind = MAPS[name]
            means = []
            for placement in (OnDevice(torch, a.device), Host()):
                logits = HeadLogits(table, weight, bias, placement)
                fitted = kind.fit(logits.reduce(features=kind.needs_features))
                means.append(float(np.mean(logits.mapped_scores(fitted).nll)))
            found[f"{name}, {classes} classes"] = {"device": means[0], "host": means[1]}
    return found


def size(a: argparse.Namespace) -> dict[str, Any]:
    """Seconds of scoring all samples once, the least of some, by the number of multiplications."""
    found = {}
    for samples, features, classes in (
        (1000, 64, 10),
        (10_000, 64, 10),
        (10_000, 512, 10),
        (10_000, 512, 100),
        (50_000, 512, 100),
    ):
        table, weight, bias = make(samples, features, classes, lean=0.125, sharpness=0.15)
        seconds = {}
        for where, placement in ((a.device, OnDevice(torch, a.device)), ("host", Host())):
            one_pass = functools.partial(_score_once, table, weight, bias, placement)
            seconds[where] = min(timed(one_pass) for _ in range(6))
        found[f"{samples} x {features} x {classes} = {samples * features * classes:.1e}"] = seconds
    return found


def _score_once(table: FeatureTable, weight: Any, bias: np.ndarray, placement: Placement) -> None:
    HeadLogits(table, weight, bias, placement).scores()


def forest(a: argparse.Namespace) -> dict[str, Any]:
    """Trees with labels of text, written out: two outputs, one of them on the CPU alone."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 4)).astype(np.float32)
    labels = np.digitize(x[:, 0] + rng.standard_normal(2000), [0.0])
    leaf = [0.1, 0.9, 0.8, 0.2]
    info = helper.make_tensor_value_info
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", post_transform="NONE",
        classlabels_strings=["no", "yes"], nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0], nodes_modes=["BRANCH_LT", "LEAF", "LEAF"], nodes_values=[0.0, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], class_treeids=[0] * 4, class_nodeids=[1, 1, 2, 2],
        class_ids=[0, 1, 0, 1], class_weights=[leaf[2], leaf[3], leaf[0], leaf[1]],
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [info("x", TensorProto.FLOAT, ["N", 4])],
        [info("label", TensorProto.STRING, ["N"]), info("p", TensorProto.FLOAT, ["N", 2])],
    )  # fmt: skip
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return _ends(helper.make_model(graph, opset_imports=domains, ir_version=8), x, labels, a)


def _logits(table: FeatureTable, bias: np.ndarray, placement: Placement, weight: Any) -> HeadLogits:
    return HeadLogits(table, weight, bias, placement)


def search(kind: str, name: str, where: str, a: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a search; a first turn is not counted where there are more."""
    table, weight, bias = make(a.samples, a.features, a.classes, lean=0.125, sharpness=0.15)
    settings = SearchSettings(angle_step=2.0)
    if kind == "auto":
        table, weight, bias = make(a.samples // 10, a.features // 4, a.classes // 10, lean=0.125, sharpness=0.15)
        settings = SearchSettings(objective="nll")
    placement, turns = (Host(), 1) if where == "host" else (OnDevice(torch, a.device), a.repeats + 1)
    logits_of = functools.partial(_logits, table, bias, placement)
    outcomes: list[Outcome] = []

    def run() -> None:
        outcomes.append(Strategy(logits_of, weight, kind, name, settings).run(lambda *_: None))

    seconds = [timed(run) for _ in range(turns)]
    last = outcomes[-1]
    return {
        "seconds": seconds, "chosen": last.label, "angle": last.chosen.angle, "members": last.chosen.ensemble_size,
        "candidates": len(last.candidates),
    }  # fmt: skip


_SEARCHES = {"sparse": ("sparse", "none"), "auto": ("auto", "auto"), "complete": ("complete", "ts")}

Check = Callable[[argparse.Namespace], dict[str, Any]]
PARTS: dict[str, dict[str, Check]] = {
    "torch": {
        "environment": environment,
        "maps": maps,
        "placed": placed,
        "memory": memory,
        "size": size,
        **{name: functools.partial(search, *words, "device") for name, words in _SEARCHES.items()},
        **{f"{name}-host": functools.partial(search, *words, "host") for name, words in _SEARCHES.items()},
    },
    "onnxruntime": {
        "runtime": environment,
        "session": session,
        "calibrate": calibrate,
        "forest": forest,
        "tf32": tf32,
        "bfloat16": functools.partial(typed_head, TensorProto.BFLOAT16),
        "float16": functools.partial(typed_head, TensorProto.FLOAT16),
        "limits": limits,
        "spread": spread,
    },
}
"""Checks by what they need on CUDA, those of most worth first."""
CHECKS = {name: check for part in PARTS.values() for name, check in part.items()}
_LIMIT = 480  # seconds of a check


def run_apart(name: str, a: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Run a check in a process of its own, and return its verdict with what it found."""
    if limit <= 0:
        return {"verdict": "skipped", "why": "the time of all checks is over"}
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
    if a.device == "cuda" and CHECKS[name] is not environment and not torch.cuda.is_available():
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
    parser.add_argument("--part", choices=[*PARTS], help="the checks that need this alone on CUDA")
    parser.add_argument("--only", choices=[*CHECKS], action="append")
    parser.add_argument("--seconds", type=float, default=45 * 60, help="of all checks")
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
    if a.output and a.output.is_file():
        found = json.loads(a.output.read_text("utf-8"))
    end = time.monotonic() + a.seconds
    for name in a.only or (PARTS[a.part] if a.part else CHECKS):
        found[name] = run_apart(name, a, min(_LIMIT, end - time.monotonic()))
        if a.output:
            beside = a.output.with_name(f"{a.output.name}.part")
            beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            beside.replace(a.output)
        print(f"{name}: {found[name]['verdict']} {found[name].get('why', '')}", flush=True)


if __name__ == "__main__":
    main()
