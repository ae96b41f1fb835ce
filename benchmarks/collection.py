"""Collecting features: time against a bare loop of `session.run`, and peak memory at 10,000 and 100,000 samples.

Time. Networks with random weights (built here: MobileNetV2, ResNet-50) run over JPEG files of 500 x 375, made
here, preprocessed as for ImageNet. Where the environment variable TNA_ONNX_CIFAR10 names a folder with `calib/` and
`resnet20-wide.onnx`, so does that. In turn, in one process:

- bare: ONNX Runtime with default options runs the graph, cut at the features, over batches made before. It has the
  machine for itself: nothing is read meanwhile.
- collected: `collect_features`, from files to the store: open, decode, resize, normalise, stack, run, check, store. Its
  session is the one that serves a whole run, so the head is computed too.

Both with as many threads as ONNX Runtime takes by itself (all cores), and with one thread for the network, which leaves
the other cores for reading, as a GPU would. A third kind of row has a stand-in for a network on a GPU: a session that
sleeps for some time per sample.

If reading and network share the cores, collecting cannot take less than (CPU time of the network + CPU time of reading)
/ (CPU time of the network) times the bare loop; `floor` is that number.

Memory. `tna_onnx.features` with a cache runs in a process of its own over a folder of links to a few JPEG files, and
over mapped arrays. Anonymous memory (RssAnon) is what the process holds; pages of the store and of the arrays (RssFile)
are the system's to drop.

    python benchmarks/collection.py            # prints the page and writes docs/results/collection.md
    python benchmarks/collection.py --help
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import arguments, markdown, memory_gb, peak_memory_gb, versions
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import tna_onnx
from tna_onnx.data import PRESETS, Recipe, Source, open_source
from tna_onnx.extraction.collect import collect_features
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import load_model
from tna_onnx.progress import silent
from tna_onnx.runtime import parse_device

ROOT = Path(__file__).resolve().parent.parent
BATCH = 64  # as the package's default
CPU = parse_device("cpu")


class Net:
    """A graph in the making: each method appends a layer and returns the name of its output."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value: np.ndarray) -> str:
        """Store an array."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def normal(self, *shape: int, gain: float = 2.0) -> str:
        """Store random weights that keep the variance."""
        return self.constant(self.rng.standard_normal(shape, np.float32) * np.sqrt(gain / np.prod(shape[1:])))

    def conv(self, x: str, c_in: int, c_out: int, size: int, stride: int = 1, groups: int = 1) -> str:
        """Convolution with bias, as exporters write it after folding the batch normalisation."""
        weight, bias = self.normal(c_out, c_in // groups, size, size), self.constant(np.zeros(c_out))
        pads = [(size - 1) // 2] * 4
        return self.add("Conv", x, weight, bias, strides=[stride] * 2, pads=pads, group=groups)

    def save(self, path: Path, x: str, n: int, classes: int) -> Path:
        """Average over the image, classify, write."""
        features = self.add("Flatten", self.add("GlobalAveragePool", x))
        weight, bias = self.normal(classes, n, gain=1.0), self.constant(np.zeros(classes))
        self.nodes.append(helper.make_node("Gemm", [features, weight, bias], ["logits"], name="head", transB=1))
        graph = helper.make_graph(
            self.nodes,
            path.stem,
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, "H", "W"])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", classes])],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, path)
        return path


def resnet50(path: Path) -> Path:
    """He et al. 2016: 4.1 G multiply-adds at 224 x 224, n = 2048."""
    net = Net()
    x = net.add("Relu", net.conv("input", 3, 64, 7, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, blocks in enumerate([3, 4, 6, 3]):
        inner = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.add("Relu", net.conv(x, width, inner, 1))
            y = net.add("Relu", net.conv(y, inner, inner, 3, stride))
            y = net.conv(y, inner, 4 * inner, 1)
            x = x if block else net.conv(x, width, 4 * inner, 1, stride)
            x, width = net.add("Relu", net.add("Add", x, y)), 4 * inner
    return net.save(path, x, width, 1000)


def mobilenet_v2(path: Path) -> Path:
    """Sandler et al. 2018, width 1.0: 0.3 G multiply-adds at 224 x 224, n = 1280."""
    net = Net()
    low, high = net.constant(np.array(0.0)), net.constant(np.array(6.0))

    def relu6(x: str) -> str:
        return net.add("Clip", x, low, high)

    x, width = relu6(net.conv("input", 3, 32, 3, 2)), 32
    for expand, channels, blocks, first in [
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ]:  # fmt: skip
        for block in range(blocks):
            stride, inner = 1 if block else first, expand * width
            y = x if expand == 1 else relu6(net.conv(x, width, inner, 1))
            y = net.conv(relu6(net.conv(y, inner, inner, 3, stride, inner)), inner, channels, 1)
            x, width = net.add("Add", x, y) if stride == 1 and width == channels else y, channels
    return net.save(path, relu6(net.conv(x, width, 1280, 1)), 1280, 1000)


def small(path: Path) -> Path:
    """One convolution, n = 512: for memory, where the time does not matter."""
    net = Net()
    return net.save(path, net.add("Relu", net.conv("input", 3, 512, 8, 8)), 512, 1000)


def picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Noise on all scales, which compresses about as photographs do."""
    total = np.zeros((height, width, 3), np.float32)
    for cells in (4, 16, 64, 256):
        coarse = Image.fromarray(rng.integers(0, 256, (max(1, cells * height // width), cells, 3), np.uint8))
        total += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32) * (2 / cells**0.5)
    low, high = total.min(), total.max()
    return Image.fromarray(((total - low) / (high - low) * 255).astype(np.uint8))


def make_photos(folder: Path, count: int, width: int, height: int) -> Path:
    """Write JPEG files into class folders 0 to 9."""
    rng = np.random.default_rng(0)
    for k in range(10):
        (folder / str(k)).mkdir(parents=True)
    for k in range(count):
        picture(rng, width, height).save(folder / str(k % 10) / f"{k:06d}.jpg", quality=92)
    return folder


@dataclass(frozen=True)
class Run:
    """Seconds of one pass.

    Attributes:
        wall: elapsed.
        cpu: of all threads of this process.
        others: of everything else on the machine meanwhile; NaN where the system does not tell.
    """

    wall: float
    cpu: float
    others: float


def machine_seconds() -> float:
    """CPU time of all processes since the start of the machine, with what the hypervisor took."""
    try:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9]
        )
    except OSError:
        return float("nan")
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def timed(run: Callable[[], object]) -> Run:
    """Run once."""
    machine, cpu, wall = machine_seconds(), time.process_time(), time.perf_counter()
    run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Run(wall, cpu, max(0.0, machine_seconds() - machine - cpu))


def disturbance(runs: Iterable[Run]) -> float:
    """Cores that other processes took, the worst of some runs."""
    return max(run.others / run.wall for run in runs)


def quiet(runs: Iterable[Run]) -> bool:
    """Whether other processes took less than a tenth of a core."""
    return disturbance(runs) < 0.1


@dataclass(frozen=True)
class Case:
    """One network over one data set, with some number of threads."""

    model: Path
    data: Path
    recipe: Recipe
    threads: int  # 0: what ONNX Runtime takes by itself
    limit: int  # samples
    sleep: float = 0  # seconds per sample of a device that stands in for the network; 0: no stand-in

    def measure(self, repeats: int, most: int) -> tuple[int, list[tuple[Run, Run, Run]]]:
        """Return the number of samples and (bare, collected, reading alone) of the `repeats` least disturbed rounds."""
        model = load_model(self.model)
        head = choose_head(model)
        inputs = OpenModel(model, head, CPU).inputs
        source = Part(open_source(self.data, inputs, head.n_classes, self.recipe), self.limit)
        batches = list(source.batches(BATCH))
        options, opened = onnxruntime.SessionOptions, onnxruntime.InferenceSession
        onnxruntime.SessionOptions = lambda: with_threads(options(), self.threads)  # the package takes these too
        if self.sleep:
            onnxruntime.InferenceSession = lambda *a, **b: StandIn(opened(*a, **b), self.sleep, head.n_features)
        try:
            cut = cut_at(model, [head.features]).SerializeToString()

            def bare() -> None:
                session = onnxruntime.InferenceSession(
                    cut, onnxruntime.SessionOptions(), providers=["CPUExecutionProvider"]
                )
                for batch in batches:
                    session.run([head.features], batch)

            def collected() -> None:
                collect_features(OpenModel(model, head, CPU), head, source, BATCH, silent)

            def reading() -> None:
                for _ in source.batches(BATCH):
                    pass

            bare()  # memory that the process has never touched is slow
            runs: list[tuple[Run, Run, Run]] = []
            for _ in range(most):
                runs.append((timed(bare), timed(collected), timed(reading)))
                if sum(map(quiet, runs)) >= repeats:
                    break
            return len(source), sorted(runs, key=disturbance)[:repeats]
        finally:
            onnxruntime.SessionOptions, onnxruntime.InferenceSession = options, opened


class StandIn:
    """A session on a device of its own: it sleeps for some time per sample, and gives zeros."""

    def __init__(self, session: Any, seconds: float, n_features: int) -> None:
        self._session, self._seconds, self._n = session, seconds, n_features

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        samples = len(next(iter(feeds.values())))
        time.sleep(samples * self._seconds)
        return [np.zeros((samples, self._n), np.float32) for _ in outputs]


def with_threads(options: Any, threads: int) -> Any:
    """Set the number of threads of the network."""
    options.intra_op_num_threads = threads
    return options


class Part:
    """The samples of a source in random order (folders hold one class after the other), the first few of them."""

    def __init__(self, source: Source, limit: int) -> None:
        self._source = source
        self._rows = np.random.default_rng(0).permutation(len(source))[:limit]
        self.labels = source.labels[self._rows]
        self.describe, self.recipe, self.digest = source.describe, source.recipe, source.digest

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, size: int, rows: Any = None) -> Iterator[dict[str, np.ndarray]]:
        return self._source.batches(size, self._rows if rows is None else self._rows[rows])


def make_links(folder: Path, count: int) -> Path:
    """A folder of `count` images, hard links to ten files."""
    rng = np.random.default_rng(0)
    for k in range(10):
        (folder / str(k)).mkdir(parents=True)
        original = folder / str(k) / "000000.jpg"
        picture(rng, 120, 90).save(original, quality=92)
        for number in range(1, count // 10):
            (folder / str(k) / f"{number:06d}.jpg").hardlink_to(original)
    return folder


def make_arrays(folder: Path, count: int) -> Path:
    """A folder with `input.npy` (count, 3, 32, 32) and `labels.npy`."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    images = np.lib.format.open_memmap(folder / "input.npy", "w+", np.float32, (count, 3, 32, 32))
    for start in range(0, count, 1000):
        part = images[start : start + 1000]
        part[:] = rng.standard_normal(part.shape, np.float32)
    images.flush()
    np.save(folder / "labels.npy", np.arange(count) % 10)
    return folder


def collect_once(kind: str, model: Path, data: Path, cache: Path) -> None:
    """Collect and print peaks: what the subprocess does."""
    recipe = Recipe(resize=64, crop=64) if kind == "images" else None
    (before,) = memory_gb(["RssAnon"])
    peaks = peak_memory_gb(lambda: tna_onnx.features(model, data, cache, preprocessing=recipe, device="cpu"))
    stored = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) / 2**30
    print(*(1024 * size for size in (before, *peaks, stored)))


def memory_rows(folder: Path, sizes: list[int]) -> list[list[str]]:
    """Rows of the table of peak memory."""
    rows = []
    model = small(folder / "small.onnx")
    for kind, make in (("images", make_links), ("arrays", make_arrays)):
        for count in sizes:
            with tempfile.TemporaryDirectory(dir=folder) as name:
                data = make(Path(name) / "data", count)
                command = [sys.executable, __file__, "--collect-once", kind, str(model), str(data), f"{name}/cache"]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            values = [float(value) for value in printed.split()]
            rows.append([kind, f"{count:,}", *(f"{value:.0f}" for value in values)])
            print(f"memory: {rows[-1]}", file=sys.stderr)
    return rows


def time_row(case: Case, repeats: int, most: int) -> list[str]:
    """Row of the table of times."""
    n, runs = case.measure(repeats, most)
    bare, collected, reading = zip(*runs, strict=True)
    ratios = sorted(c.wall / b.wall for b, c, _ in runs)
    cpu = [1000 * float(np.median([run.cpu for run in kind])) / n for kind in (bare, collected, reading)]
    wall = [1000 * float(np.median([run.wall for run in kind])) / n for kind in (bare, collected)]
    floor = float(np.median([1 + r.cpu / b.cpu for b, _, r in runs]))
    row = [
        f"{1000 * case.sleep:g} ms asleep, {case.data.name}" if case.sleep else case.model.stem,
        f"{n:,}",
        "-" if case.sleep else str(case.threads or "all"),
        *(f"{value:.2f}" for value in wall),
        f"**{np.median(ratios):.2f}** ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        *(f"{value:.2f}" for value in cpu),
        "-" if case.threads or case.sleep else f"{floor:.2f}",
        f"{disturbance([run for three in runs for run in three]):.1f}",
    ]
    print(f"time: {row}", file=sys.stderr)
    return row


def cases(folder: Path, a: argparse.Namespace) -> Iterator[Case]:
    """Networks and data sets to time."""
    cifar = os.environ.get("TNA_ONNX_CIFAR10")
    photos = make_photos(folder / "photos", a.photos, 500, 375)
    mobile, residual = mobilenet_v2(folder / "MobileNetV2.onnx"), resnet50(folder / "ResNet-50.onnx")
    threads = (1, 0)
    yield Case(mobile, photos, PRESETS["imagenet"], 1, a.photos, sleep=0.004)
    for model, limit in ((mobile, a.photos), (residual, a.slow)):
        for count in threads:
            yield Case(model, photos, PRESETS["imagenet"], count, limit)
    if cifar:
        recipe = Recipe(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        yield Case(Path(cifar) / "resnet20-wide.onnx", Path(cifar) / "calib", recipe, 1, 10**9, sleep=0.0005)
        for count in threads:
            yield Case(Path(cifar) / "resnet20-wide.onnx", Path(cifar) / "calib", recipe, count, 10**9)
    else:
        print("TNA_ONNX_CIFAR10 is not set: CIFAR-10 left out", file=sys.stderr)


def commit() -> str:
    """The commit of the checkout, and whether it was changed since."""
    run = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        return subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


TIME_HEAD = [
    "network", "samples", "threads", "bare, ms", "collected, ms", "collected / bare (range)",
    "CPU bare, ms", "CPU collected, ms", "CPU reading, ms", "floor", "others, cores",
]  # fmt: skip
MEMORY_HEAD = ["data", "samples", "before, MB", "peak RssAnon, MB", "peak RssFile, MB", "store on disk, MB"]


def main() -> None:
    """Measure, print, write."""
    parser = arguments(__doc__)
    parser.add_argument("--photos", type=int, default=2000, help="JPEG files, all of which MobileNetV2 sees")
    parser.add_argument("--slow", type=int, default=512, help="how many of them ResNet-50 sees")
    parser.add_argument("--repeats", type=int, default=5, help="rounds per row of the table of times; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=10, help="made at most, where other processes disturb them")
    parser.add_argument("--sizes", default="10000,100000", help="samples in the table of memory; '' leaves it out")
    parser.add_argument("--output", default=str(ROOT / "docs" / "results" / "collection.md"), help="'' prints only")
    parser.add_argument("--collect-once", nargs=4, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.collect_once:
        kind, *paths = a.collect_once
        collect_once(kind, *map(Path, paths))
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tna-onnx-benchmark-") as name:
        folder = Path(name)
        sizes = [int(size) for size in a.sizes.split(",") if size]
        memory = memory_rows(folder, sizes)
        times = [time_row(case, a.repeats, max(a.repeats, a.rounds)) for case in cases(folder, a)] if a.repeats else []
    libraries = versions("tna-onnx", "onnxruntime", "numpy", "pillow")
    text = TEXT.format(
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, shared with other work",
        versions=f"Python {platform.python_version()}, {libraries}",
        commit=commit(),
        load=f"{load:.1f} before, {os.getloadavg()[0]:.1f} after",
        repeats=a.repeats,
        rounds=max(a.repeats, a.rounds),
        batch=BATCH,
        times=markdown(TIME_HEAD, times),
        memory=markdown(MEMORY_HEAD, memory),
    )
    print(text)
    if a.output:
        Path(a.output).write_text(text, encoding="utf-8")


TEXT = """# Collecting features: time and memory

Generated by `python benchmarks/collection.py` at {commit} on {machine}; {versions}. Load average {load}.

## Time

Milliseconds per sample, medians of {repeats} rounds, batches of {batch}. *Bare* is ONNX Runtime over batches that
are in memory, with nothing read meanwhile; *collected* is `collect_features` from the files to the store. Both open
their session. A round is bare, collected and reading alone, one after the other. The least disturbed ones of at most
{rounds} count; *others* is what other processes took in the worst of them.

*Floor*: where the network takes all cores, reading takes its CPU time from the network, and no order of the work goes
below 1 + CPU reading / CPU bare. With one thread for the network, reading has the rest of the machine, as beside a GPU.

{times}

The rows of a network *asleep* are no network: a session sleeps for that long per sample, as the CPU does beside a GPU.
Where *others* is near a whole core, two cores hold neither all of the network nor its reading: compare CPU times there.

## Session options

Kept, measured on a quiet machine, two cores, all of them for the network, batches of 64, medians of 3 to 5 rounds, each
option in turn; milliseconds per sample:

| option | resnet20-wide: bare | collected | CPU | MobileNetV2: bare | collected | CPU |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| ONNX Runtime's defaults | 0.264 | 0.388 | 0.760 | 4.75 | 6.06 | 11.6 |
| **no spinning** (`intra_op.allow_spinning` 0) | 0.272 | **0.354** | **0.624** | 4.45 | **5.71** | **10.8** |
| no spinning after a run (`force_spinning_stop` 1) | 0.245 | 0.381 | 0.707 | 5.39 | 6.47 | 12.3 |
| spinning for 1 ms at most | 0.253 | 0.432 | 0.777 | | | |

In other runs of 3 rounds: no arena 9.12 against 6.55 for MobileNetV2 (every batch takes its memory anew); no memory
pattern 6.63 against 6.55, and 0.415 against 0.394. Both stay as they are. Threads that spin wait on the cores that read
the next samples; probably much of the CPU time of collecting beyond network and reading was theirs.

One session checks the head and collects. With two open at once, the largest anonymous memory was 1562 MB in place of
987 MB for MobileNetV2 with 192 photographs.

Milliseconds per sample of the network alone, by batch size (the fastest of 3 to 10 runs), which is what
`--batch-size auto` goes by:

| | 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | 256 |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| resnet20-wide | 0.489 | 0.373 | 0.336 | 0.275 | 0.247 | 0.232 | 0.229 | 0.238 | 0.264 |
| MobileNetV2 | 2.76 | 2.47 | 2.22 | 2.42 | 2.73 | 3.06 | 3.09 | 3.14 | |

## Tried and dropped

Measured or judged on two cores with MobileNetV2 and 640 to 768 photographs:

- Lower priority for the threads that read (nice 10): 5.62 against 5.59 ms per sample on a quiet machine with all cores
  for the network, no difference. With one thread for the network no verdict, the machine was busy.
- One thread that reads in place of two: two rounds on a busy machine, no verdict.
- Not tried, little to win: assembling batches in place (stacking costs 0.07 ms of the 2.3 ms of a photograph; decoding
  0.8, resizing 1.1, cropping 0.1, normalising 0.3); one multiply and add to normalise, which rounds differently.
- Ruled out, as they change pixels: JPEG draft mode, `reducing_gap`.

The first two batches of a session are slow, 1.2 s more in a fresh process for MobileNetV2, most likely because ONNX
Runtime takes its memory then; the bare loop pays for that too.

## Memory

`tna_onnx.features` with a cache, in a process of its own, 512 features and 1000 logits per sample in float32; images of
120 x 90 brought to 64 x 64, arrays (3, 32, 32) mapped from `.npy`. Anonymous memory is what the process holds. RssFile
is the resident part of mapped files (libraries, the store, the arrays), which the system may drop at any time.

{memory}
"""


if __name__ == "__main__":
    main()
