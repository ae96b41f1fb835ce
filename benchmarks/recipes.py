"""Is the preprocessing found that a network was trained with, from labelled images alone?

Networks are prepared with torchvision's transforms, each with another recipe. On `signs`, drawn here from the digits of
scikit-learn, a small CNN is trained under each; on CIFAR-10 (`--cifar10 FOLDER`, class folders, with `--model FILE`,
trained on ImageNet statistics) each is that model behind two nodes that undo the recipe. `calibrate` is told nothing,
on 50, 200 and 1,000 images; then the file runs on held-out images as torchvision prepares them, which is production.

A recipe is right where it is the true one; alike where it hardly differs (statistics of natural images, sizes or filter
of a resize); refused where the command stops; wrong otherwise. Needs torch, torchvision and scikit-learn.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from common import arguments, markdown, timed
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import transforms  # type: ignore[import-not-found,import-untyped,unused-ignore]

import tna_onnx
from tna_onnx.errors import DataError

SIDE = 32
SIZES = (50, 200, 1000)
HELD_OUT = 1000
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5,) * 3, (0.5,) * 3)
NATURAL = ("imagenet", "clip", "cifar10", "cifar100")


@dataclass(frozen=True)
class Recipe:
    """What a network is trained with: (`factor` times pixels of 0 to 1, less `mean`) by `std`, ordered as `color`."""

    name: str
    mean: tuple[float, ...] = (0.0,) * 3
    std: tuple[float, ...] = (1.0,) * 3
    factor: float = 1.0
    color: str = "RGB"
    crop_pct: float | None = None
    bicubic: bool = False

    def transform(self, *, resized: bool) -> Any:
        """torchvision's transform of a PIL image."""
        steps: list[Any] = []
        if resized:
            kind = transforms.InterpolationMode.BICUBIC if self.bicubic else transforms.InterpolationMode.BILINEAR
            if self.crop_pct is None:
                steps = [transforms.Resize((SIDE, SIDE), kind)]
            else:
                short = math.floor(SIDE / self.crop_pct)
                steps = [transforms.Resize(short, kind), transforms.CenterCrop(SIDE)]
        if self.color == "L":
            steps.append(transforms.Grayscale())
        steps.append(transforms.ToTensor())
        if self.color == "BGR":
            steps.append(transforms.Lambda(lambda x: x.flip(0)))
        channels = 1 if self.color == "L" else 3
        steps.append(transforms.Lambda(lambda x: x * self.factor))
        steps.append(transforms.Normalize(self.mean[:channels], self.std[:channels]))
        return transforms.Compose(steps)

    def verdict(self, chosen: str, preprocessing: dict[str, Any], *, resized: bool) -> str:
        """Judge what was found; sizes are compared where images are resized."""
        name, _, order = chosen.partition(";")[0].partition(", ")
        if self.color != preprocessing["color"]:
            return "wrong"
        statistics = np.array(preprocessing["std"]) / (preprocessing["scale"] * 255) * self.factor
        channels = len(statistics)
        same = np.allclose(statistics, self.std[:channels], rtol=1e-3)
        shift = np.array(preprocessing["mean"]) / (preprocessing["scale"] * 255) * self.factor
        same = same and np.allclose(shift, self.mean[:channels], atol=1e-3 * self.factor)
        if not same:
            return "alike" if self.name in NATURAL and (name in NATURAL or "std 0.2" in order) else "wrong"
        if resized:
            crop = None if self.crop_pct is None else math.floor(SIDE / self.crop_pct)
            truth = (SIDE, SIDE) if crop is None else crop
            found = preprocessing["resize"]
            found = tuple(found) if isinstance(found, list) else found
            same = found == truth and (preprocessing["interpolation"] == "bicubic") == self.bicubic
        return "right" if same else "alike"


def _bgr(statistics: tuple[tuple[float, ...], tuple[float, ...]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return statistics[0][::-1], statistics[1][::-1]


RECIPES = (
    Recipe("0 to 1"),
    Recipe("0 to 255", factor=255.0, color="BGR", crop_pct=0.875),
    Recipe("-1 to 1", *HALF, crop_pct=0.875, bicubic=True),
    Recipe("imagenet", *IMAGENET, crop_pct=0.875),
    Recipe("clip", *CLIP, crop_pct=1.0, bicubic=True),
    Recipe("cifar10", *_bgr(((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))), color="BGR"),
    Recipe("cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), crop_pct=0.95, bicubic=True),
    Recipe("mnist", (0.1307,) * 3, (0.3081,) * 3, color="L"),
    Recipe("caffe", (103.939, 116.779, 123.68), factor=255.0, color="BGR", crop_pct=0.875),
)


def draw_signs(digits: NDArray[Any], labels: NDArray[Any], seed: int) -> Iterator[tuple[Image.Image, int]]:
    """Yield a photograph-like picture of each digit, 40 x 56: a sign of a warm colour on a cold and uneven ground."""
    rng = np.random.default_rng(seed)
    for digit, label in zip(digits, labels, strict=True):
        ground = rng.normal(size=(5, 7, 3)) * 45 + np.array([70, 105, 140]) + rng.normal() * 25
        canvas = Image.fromarray(np.clip(ground, 0, 255).astype(np.uint8)).resize((56, 40), Image.Resampling.BICUBIC)
        side = int(rng.integers(24, 33))
        shape = Image.fromarray((digit * 15.9).astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
        color = tuple(int(v) for v in np.clip(np.array([190, 130, 80]) + rng.normal(size=3) * 30, 0, 255))
        at = (int(rng.integers(10, 46 - side + 1)), int(rng.integers(2, 38 - side + 1)))
        canvas.paste(Image.new("RGB", (side, side), color), at, shape)
        noisy = np.asarray(canvas, np.float64) + rng.normal(size=(40, 56, 3)) * 18
        yield Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)), int(label)


def signs() -> tuple[list[tuple[Image.Image, int]], list[tuple[Image.Image, int]]]:
    """Return pictures to train on, and others of other digits."""
    digits = load_digits()
    first = 1000
    train = [each for seed in range(5) for each in draw_signs(digits.images[:first], digits.target[:first], 100 + seed)]
    rest = [each for seed in range(3) for each in draw_signs(digits.images[first:], digits.target[first:], 200 + seed)]
    order = np.random.default_rng(0).permutation(len(rest))
    return train, [rest[k] for k in order]


def prepared(images: list[tuple[Image.Image, int]], recipe: Recipe, *, resized: bool) -> tuple[Any, Any]:
    """Return (N, C, H, W) float32 and labels (N,), prepared by torchvision."""
    transform = recipe.transform(resized=resized)
    return torch.stack([transform(image) for image, _ in images]), torch.tensor([label for _, label in images])


def trained(images: list[tuple[Image.Image, int]], recipe: Recipe, path: Path) -> None:
    """Train a CNN and write it."""
    torch.manual_seed(0)
    x, y = prepared(images, recipe, resized=True)
    layers: list[Any] = [torch.nn.BatchNorm2d(x.shape[1])]
    width = x.shape[1]
    for wider in (24, 48, 96):
        layers += [torch.nn.Conv2d(width, wider, 3, padding=1), torch.nn.BatchNorm2d(wider), torch.nn.ReLU()]
        layers.append(torch.nn.MaxPool2d(2))
        width = wider
    layers += [torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(width * 4, 10)]
    network = torch.nn.Sequential(*layers)
    epochs, size = 5, 100
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, epochs * len(x) // size)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(size):  # type: ignore[no-untyped-call,unused-ignore]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call,unused-ignore]
            optimizer.step()
            schedule.step()
    network.eval()
    torch.onnx.export(
        network, (x[:2],), path, input_names=["input"], output_names=["logits"], dynamic_axes={"input": {0: "n"}},
        dynamo=False,
    )  # fmt: skip


def undone(model: Path, recipe: Recipe, path: Path) -> None:
    """Write a model of ImageNet statistics behind nodes that undo a recipe."""
    proto = onnx.load(model)
    inner = proto.graph.input[0].name
    mean, std = (np.array(values, np.float64) for values in (recipe.mean, recipe.std))
    if recipe.color == "BGR":
        mean, std = mean[::-1], std[::-1]
    wanted_mean, wanted_std = (np.array(values) for values in IMAGENET)
    # y = (x factor - mean) / std; (x - wanted_mean) / wanted_std
    times = std / recipe.factor / wanted_std
    plus = (mean / recipe.factor - wanted_mean) / wanted_std
    nodes = []
    last = "prepared"
    if recipe.color == "BGR":
        nodes.append(helper.make_node("Gather", [last, "reversed"], ["rgb"], axis=1))
        proto.graph.initializer.append(numpy_helper.from_array(np.array([2, 1, 0]), "reversed"))
        last = "rgb"
    nodes += [
        helper.make_node("Mul", [last, "undo_times"], ["undo_scaled"]),
        helper.make_node("Add", ["undo_scaled", "undo_plus"], [inner]),
    ]
    for name, values in (("undo_times", times), ("undo_plus", plus)):
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32).reshape(1, 3, 1, 1), name))
    for node in reversed(nodes):
        proto.graph.node.insert(0, node)
    proto.graph.input[0].name = "prepared"
    onnx.save(proto, path)


def production(
    path: Path, images: list[tuple[Image.Image, int]], recipe: Recipe, *, resized: bool
) -> tuple[float, float]:
    """Accuracy and NLL of a file on images that torchvision prepares."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x, y = prepared(images, recipe, resized=resized)
    name = session.get_inputs()[0].name
    logits = np.concatenate([session.run(None, {name: part.numpy()})[0] for part in x.split(100)]).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    nll = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y.numpy()]
    return float(np.mean(logits.argmax(axis=1) == y.numpy())), float(nll.mean())


def folder_of(images: list[tuple[Image.Image, int]], folder: Path) -> Path:
    """Write images as PNG, a folder a class."""
    for k, (image, label) in enumerate(images):
        place = folder / f"{label:02}"
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{k:05}.png")
    return folder


def cifar10(folder: Path) -> list[tuple[Image.Image, int]]:
    """Read labelled images of class folders, in random order."""
    classes = sorted(each for each in folder.iterdir() if each.is_dir())
    files = [(file, k) for k, place in enumerate(classes) for file in sorted(place.iterdir())]
    order = np.random.default_rng(0).permutation(len(files))[: max(SIZES) + HELD_OUT]
    return [(Image.open(files[k][0]).convert("RGB"), files[k][1]) for k in order]


def run(
    title: str, model: Path, recipe: Recipe, images: list[tuple[Image.Image, int]], work: Path, *, resized: bool
) -> Iterator[list[str]]:
    """Yield a row for each number of images."""
    held_out = images[-min(HELD_OUT, len(images) - 400) :]
    shown = folder_of(held_out, work / "eval")
    for wanted in SIZES:
        size = min(wanted, len(images) - len(held_out))
        data = folder_of(images[:size], work / f"calib{size}")
        out = work / f"out{size}.onnx"
        label = f"{recipe.name}, {recipe.color}"
        try:
            report = tna_onnx.calibrate(
                model, data, eval=shown, output=out, search="none", map="ts", fail_if_worse=False
            )
        except DataError as error:
            yield [title, label, f"{size:,}", "refused", *["-"] * 5, str(error).partition("\n")[0][-120:]]
            continue
        search = report.recipe_search
        assert search is not None
        assert report.preprocessing is not None
        verdict = recipe.verdict(search.chosen, report.preprocessing, resized=resized)
        after = report.comparison.after
        accuracy, nll = production(out, held_out, recipe, resized=resized)
        seconds = timed(partial(tna_onnx.evaluate, model, data)) - timed(partial(tna_onnx.evaluate, out, data))
        runner_up = next(row for row in search.recipes if row.name != search.chosen)
        yield [
            title, label, f"{size:,}", verdict, f"{100 * after.accuracy:.1f}", f"{100 * accuracy:.1f}",
            f"{after.nll:.3f}", f"{nll:.3f}", f"{seconds:.1f}",
            f"{search.chosen} ({100 * search.recipes[0].accuracy:.1f} %); {runner_up.name}, {runner_up.behind:.1f}",
        ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--cifar10", type=Path, help="folder of class folders")
    parser.add_argument("--model", type=Path, help="network for these images, trained on ImageNet statistics")
    parser.add_argument("--only", help="name of one recipe")
    chosen = parser.parse_args()
    recipes = [each for each in RECIPES if chosen.only in (None, each.name)]
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if chosen.cifar10 and chosen.model:
            images = cifar10(chosen.cifar10)
            for k, recipe in enumerate(each for each in recipes if each.color != "L"):
                path = folder / f"cifar{k}.onnx"
                undone(chosen.model, recipe, path)
                for row in run("CIFAR-10", path, recipe, images, folder / f"cifar{k}", resized=False):
                    rows.append(row)
                    print(*row, sep=" | ", flush=True)
        train, images = signs()
        for k, recipe in enumerate(recipes):
            path = folder / f"signs{k}.onnx"
            trained(train, recipe, path)
            for row in run("signs", path, recipe, images, folder / f"signs{k}", resized=True):
                rows.append(row)
                print(*row, sep=" | ", flush=True)
    head = [
        "images", "trained with", "N", "verdict", "accuracy printed, %", "in production", "NLL printed",
        "in production", "seconds", "found; runner-up, standard errors behind",
    ]  # fmt: skip
    print("\n" + markdown(head, rows, words=2))
    counts = {word: sum(row[3] == word for row in rows) for word in ("right", "alike", "refused", "wrong")}
    print("\n" + ", ".join(f"{word} {count}" for word, count in counts.items()))


if __name__ == "__main__":
    main()
