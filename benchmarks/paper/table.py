"""The paper's main table on the paper's data: an ONNX model for each network, its figures beside the printed ones.

    python benchmarks/paper/table.py cifar10 FOLDER --model WideResNet28x10=wrn.onnx --model MobileNetV2=mobile.onnx
    python benchmarks/paper/table.py imagenet FOLDER --model ResNet50=resnet50.onnx --output out/imagenet.md

FOLDER is what torchvision has as `root` (cifar-10-batches-py/, cifar-100-python/, test_32x32.mat, val/), or holds a
folder of images for each class. Its test images are split into as many calibration samples as in the paper and the
rest, anew for each repeat, by `tna-onnx study --only table`. A network that the paper does not have has no printed
figures. Features and results are kept in --work, so that a run that was interrupted goes on.

Source: Cho & Youn (2024), sections "Experimental Details" of the text and of the appendix.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from layouts import Files, Pixels, read
from numpy.typing import NDArray
from printed_numbers import METHODS, NETWORKS, printed

import tna_onnx
from tests.support import with_options

# Samples to calibrate on; the others are scored. The paper has 19,032 of these for SVHN, whose test set leaves 21,032.
CALIBRATION = {"cifar10": 5000, "cifar100": 5000, "svhn": 5000, "imagenet": 12500}

# Appendix, tables on the trained models: the same for all small images, and torchvision's for ImageNet.
_SMALL = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_LARGE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
MEAN_STD = {"cifar10": _SMALL, "cifar100": _SMALL, "svhn": _SMALL, "imagenet": _LARGE}
CROP = {"ViT-L/16": 0.9}
OTHER_CROP = 0.875

_COLUMNS = ("accuracy", "ece", "adaece")


@dataclass(frozen=True)
class Asked:
    """What was asked for on the command line."""

    dataset: str
    calibration: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    repeats: int
    seed: int
    protocol: Any
    device: str
    work: Path


def studied(images: Pixels | Files, network: str, model: Path, asked: Asked) -> Any:
    """Return the study of one network."""
    first, others = _split(images.labels, asked.calibration, asked.seed)
    settings = tna_onnx.StudySettings(repeats=asked.repeats, seed=asked.seed, protocol=asked.protocol)
    words: dict[str, Any] = {"only": ["table"], "settings": settings, "device": asked.device}
    name = network.replace("/", "-")
    words |= {"out": asked.work / name, "cache": asked.work / "cache"}
    if isinstance(images, Pixels):
        parts = [(_normalised(images.values[rows], asked), images.labels[rows]) for rows in (first, others)]
        return with_options(tna_onnx.study, model, parts[0], eval=parts[1], **words)
    recipe = tna_onnx.Recipe(mean=asked.mean, std=asked.std)
    if asked.dataset == "imagenet":
        crop = CROP.get(network, OTHER_CROP)
        recipe = tna_onnx.Recipe(mean=asked.mean, std=asked.std, interpolation="bicubic", crop_pct=crop)
    lists = [_listed(images, rows, asked.work / f"{part}.csv") for part, rows in (("calib", first), ("test", others))]
    data = [tna_onnx.Data(path, preprocessing=recipe, data_root=images.root) for path in lists]
    return with_options(tna_onnx.study, model, data[0], eval=data[1], **words)


def _split(labels: NDArray[np.int64], count: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Cut into `count` rows and the others; the study splits both together anew, by class."""
    order = np.random.default_rng(seed).permutation(len(labels))
    return np.sort(order[:count]), np.sort(order[count:])


def _normalised(values: NDArray[np.uint8], asked: Asked) -> NDArray[np.float32]:
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (asked.mean, asked.std))
    pixels: NDArray[np.float32] = values.astype(np.float32)
    pixels /= 255
    pixels -= mean
    pixels /= std
    return pixels


def _listed(images: Files, rows: NDArray[np.intp], path: Path) -> Path:
    """Write the paths and labels of some images."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "label"])
        writer.writerows([str(images.paths[row].resolve()), int(images.labels[row])] for row in rows)
    return path


def lines(study: Any, dataset: str, network: str) -> Iterator[str]:
    """Yield the table of one network as Markdown."""
    columns = [next(column for column in study.columns if column.name == name) for name in _COLUMNS]
    heads = ("Acc., %", "ECE, %", "AdaECE, %")
    beside = printed(dataset, network)
    yield f"| Method | {' | '.join(heads)} |" + "".join(f" paper: {head} |" for head in heads if beside)
    yield "| --- |" + " ---: |" * (len(heads) * (2 if beside else 1))
    methods = study.values("method")
    for method in METHODS:
        cells = ["left out"] * len(columns)
        if method in methods:
            cells = [study.text(methods.index(method), column) for column in columns]
        cells += [f"{mean} ± 0{spread}" for mean, spread in beside.get(method, ())]
        yield f"| {method} | {' | '.join(cells)} |"


def page(images: Pixels | Files, models: Sequence[tuple[str, Path]], asked: Asked) -> Iterator[str]:
    """Yield the lines of the page, a network after the other."""
    total = len(images.labels)
    yield f"# The paper's table on {asked.dataset}"
    yield (
        f"\n{total:,} test images, {asked.calibration:,} of them to calibrate on; mean ± deviation over "
        f"{asked.repeats} stratified splits; protocol: {asked.protocol}."
    )
    for network, model in models:
        found = studied(images, network, model, asked)["table"]
        yield f"\n## {network}\n"
        yield from lines(found, asked.dataset, network)
        yield f"\n{found.sentence}"
        yield from (f"\n{note}" for note in found.notes if "left out" in note)


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"expected NETWORK=FILE with a file that exists, got '{text}'")
    return name, Path(path)


def _three(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=sorted(NETWORKS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=_named, action="append", required=True, metavar="NETWORK=FILE")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--protocol", choices=("paper", "default"), default="paper")
    parser.add_argument("--calibration", type=int, help="samples to calibrate on; the paper's number by default")
    parser.add_argument("--mean", type=_three, help="of the channels; the paper's by default")
    parser.add_argument("--std", type=_three, help="of the channels; the paper's by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, help="folder that keeps features and results; a temporary one by default")
    parser.add_argument("--output", type=Path, help="Markdown file to write as well")
    a = parser.parse_args()
    try:
        images = read(a.dataset, a.folder)
    except FileNotFoundError as error:
        parser.error(str(error))
    mean, std = MEAN_STD[a.dataset]
    with tempfile.TemporaryDirectory() as temporary:
        asked = Asked(
            a.dataset,
            a.calibration or CALIBRATION[a.dataset],
            a.mean or mean,
            a.std or std,
            a.repeats,
            a.seed,
            a.protocol,
            a.device,
            a.work or Path(temporary),
        )
        asked.work.mkdir(parents=True, exist_ok=True)
        if not 0 < asked.calibration < len(images.labels):
            parser.error(f"--calibration: expected 1 to {len(images.labels) - 1:,} of the images there are")
        text = []
        for line in page(images, a.model, asked):
            print(line, flush=True)
            text.append(line)
    if a.output:
        a.output.write_text("\n".join(text) + "\n", "utf-8")


if __name__ == "__main__":
    main()
