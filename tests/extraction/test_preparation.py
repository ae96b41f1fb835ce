"""Which preprocessing a network was trained with is found by the labels, and kept."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.conftest import Demo
from tests.data.samples import open_source
from tests.extraction.prepared_images import CLASSES, SIDE, make_images, network, write_folder
from tests.extraction.samples import rows_run
from tests.support import cli, ok, with_options
from tna_onnx.data.images.known_recipes import NamedRecipe
from tna_onnx.data.source import InputSpec
from tna_onnx.data.sources.image_files import ImageSource
from tna_onnx.errors import DataError
from tna_onnx.extraction import recipe_choice, recipe_trials, unlisted
from tna_onnx.extraction.preparation import resizes_images
from tna_onnx.graph.load import load_model

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


Make = Callable[..., Path]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), *make_images(200))


@pytest.fixture
def saved(tmp_path: Path) -> Make:
    def save(**fields: Any) -> Path:
        path = tmp_path / "model.onnx"
        onnx.save(network(**fields), path)
        return path

    return save


def refused_by_data(message: str, model: Path, data: Any, **stated: Any) -> None:
    with pytest.raises(DataError, match=message):
        tna_onnx.evaluate(model, data, device="cpu", **stated)


def accuracy(path: Path, data: Path, **stated: Any) -> float:
    return with_options(tna_onnx.evaluate, path, data, **stated).metrics.accuracy


@pytest.mark.parametrize(
    ("name", "fields", "bgr"),
    [
        ("0 to 255", {"scale": 1.0}, False),
        ("-1 to 1", {"mean": 0.5, "std": 0.5}, True),
        ("imagenet", {"mean": IMAGENET[0], "std": IMAGENET[1]}, False),
        ("caffe", {"scale": 1.0, "mean": (123.68, 116.779, 103.939)}, True),
    ],
)
def test_the_recipe_is_found(name: str, fields: dict[str, Any], bgr: bool, photos: Path, saved: Make) -> None:
    if bgr:
        fields = {key: value[::-1] if isinstance(value, tuple) else value for key, value in fields.items()}
    result = tna_onnx.evaluate(saved(bgr=bgr, **fields), photos)
    order = "BGR" if bgr else "RGB"
    # these hardly differ: either is right
    alike = {"0 to 255": ("0 to 255",), "imagenet": ("imagenet", "clip", "cifar10", "cifar100", "cifar10, std 0.2")}
    allowed = [f"{each}, {order}" for each in alike.get(name, (name,))]
    if bgr and name == "imagenet":
        allowed.append("imagenet, BGR with mean and std of RGB")
    assert result.recipe_search.chosen in allowed
    assert result.metrics.accuracy > 0.85
    assert any(result.recipe_search.chosen in note for note in result.notes)


def test_nothing_is_searched_where_there_is_no_choice(tmp_path: Path, saved: Make) -> None:
    data = write_folder(tmp_path / "grey", *make_images(100, channels=1))
    assert tna_onnx.evaluate(saved(scale=1.0, dtype=np.uint8, channels=1), data).recipe_search is None


def _as_trained(images: Any, size: Any, crop: bool) -> Any:
    """Resize with Pillow alone: the shorter side to 9 and the centre of 8 cut out, or both sides to 8."""
    made = []
    for array in images:
        image = Image.fromarray(array)
        if crop:
            short = SIDE / 0.875
            factor = int(short) / min(image.size)
            image = image.resize((int(image.width * factor), int(image.height * factor)), Image.Resampling.BILINEAR)
            left, top = round((image.width - SIDE) / 2), round((image.height - SIDE) / 2)
            image = image.crop((left, top, left + SIDE, top + SIDE))
        else:
            image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        made.append(np.asarray(image))
    return np.stack(made)


@pytest.mark.slow
@pytest.mark.parametrize("crop", [True, False])
def test_images_of_another_size(crop: bool, tmp_path: Path, saved: Make) -> None:
    size = (16, 32)
    model = saved(scale=1.0, source=size, resized=lambda images: _as_trained(images, size, crop))
    data = write_folder(tmp_path / "wide", *make_images(200, size=size))
    result = tna_onnx.evaluate(model, data)
    assert result.recipe_search.chosen.startswith("0 to 255, RGB; ")
    assert (result.preprocessing["crop"] is not None) == crop


def test_an_input_of_any_size_takes_images_as_they_are(photos: Path, saved: Make) -> None:
    result = tna_onnx.evaluate(saved(mean=0.5, std=0.5, size=("H", "W")), photos)
    assert result.recipe_search.chosen == "-1 to 1, RGB"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images of `photos`, two or three times as large."""
    folder = tmp_path_factory.mktemp("mixed") / "images"
    for k, (image, label) in enumerate(zip(*make_images(200), strict=True)):
        file = folder / f"class{label}" / f"{k:04}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((SIDE * (2 + k % 2),) * 2, Image.Resampling.NEAREST).save(file)
    return folder


def resizing(layer: bool = False) -> onnx.ModelProto:
    """Return a network that brings images of any size to its own: at once, or behind a layer that changes nothing."""
    model = network(size=("height", "width"))
    model.graph.node[0].input[0] = "resized"
    nodes = nodes_of(
        "Conv image identity > first; Shape image > count end=2; Concat count side side > sizes axis=0; "
        f"Resize {'first' if layer else 'image'} _ _ sizes > resized"
    )
    for node in reversed(nodes if layer else nodes[1:]):
        model.graph.node.insert(0, node)
    tensors = {"side": np.array([SIDE], np.int64), "identity": np.eye(3, dtype=np.float32)[:, :, None, None]}
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in tensors.items())
    return model


def test_a_model_that_resizes_takes_images_of_several_sizes_as_they_are(
    mixed: Path, photos: Path, saved: Make, tmp_path: Path
) -> None:
    onnx.save(resizing(), tmp_path / "resizing.onnx")
    out = tmp_path / "out.onnx"
    report = tna_onnx.calibrate(tmp_path / "resizing.onnx", mixed, output=out, map="ts", search="none")
    assert report.recipe_search.chosen == "0 to 1, RGB"
    # the nearest pixel, and the mean of equal ones: those of the images before they were enlarged
    alone = accuracy(saved(), photos, preprocessing=tna_onnx.Recipe(scale=1 / 255))
    assert report.comparison.before.accuracy == alone
    assert not any("any size" in note for note in report.notes)


@pytest.mark.slow
def test_a_size_that_nothing_says_is_called_a_guess(mixed: Path, tmp_path: Path) -> None:
    model = tmp_path / "any.onnx"
    onnx.save(resizing(layer=True), model)
    # larger images, made small again, have less contrast than those of the training
    data = tna_onnx.Data(mixed, expect_accuracy=85)
    guessed = tna_onnx.evaluate(model, data)
    assert any("WARNING" in note and "any size" in note for note in guessed.notes)
    stated = tna_onnx.evaluate(model, data, preset=tna_onnx.Recipe(resize=(SIDE, SIDE)))
    assert not any("any size" in note for note in stated.notes)
    assert stated.metrics.accuracy > 0.8
    refused_by_data("after preprocessing", model, mixed, preset=tna_onnx.Recipe(scale=1 / 255))


def test_a_model_that_normalises_by_itself_takes_any_scale(photos: Path, tmp_path: Path) -> None:
    proto = network()
    # (x - mean) / deviation of each image, in front of all else
    before = nodes_of(
        "ReduceMean raw > mu axes=[1,2,3]; Sub raw mu > centred; ReduceL2 centred > length axes=[1,2,3]; "
        "Div centred length > unit; Mul unit two > wide; Add wide middle > image"
    )
    for node in reversed(before):
        proto.graph.node.insert(0, node)
    proto.graph.input[0].name = "raw"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2.5), "two"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.42), "middle"))
    onnx.save(proto, tmp_path / "own.onnx")
    result = tna_onnx.evaluate(tmp_path / "own.onnx", tna_onnx.Data(photos, expect_accuracy=60))
    assert result.recipe_search.tied
    assert result.recipe_search.chosen == "0 to 1, RGB"
    assert result.metrics.accuracy > 0.5  # contrast, which tells half of the classes, is gone


def test_calibrate_writes_the_recipe_and_later_commands_read_it(photos: Path, saved: Make, tmp_path: Path) -> None:
    model = saved(scale=1.0, bgr=True)
    out = tmp_path / "out.onnx"
    held_out = write_folder(tmp_path / "eval", *make_images(200, seed=5))
    report = tna_onnx.calibrate(model, photos, eval=held_out, output=out, map="ts", search="none")
    assert report.recipe_search.chosen == "0 to 255, BGR"
    assert report.comparison.before.accuracy > 0.85
    entries = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert json.loads(entries["tna_onnx.preprocessing"]) == report.preprocessing
    later = tna_onnx.evaluate(out, held_out)
    assert later.preprocessing == report.preprocessing
    assert later.recipe_search is None
    assert later.metrics.nll == pytest.approx(report.comparison.after.nll, abs=1e-6)
    assert tna_onnx.verify(model, out, data=photos).outputs is not None


@pytest.mark.slow
def test_other_commands_take_the_same_recipe(photos: Path, saved: Make, tmp_path: Path) -> None:
    model = saved(scale=1.0)
    compared = tna_onnx.compare([model, model], photos)
    assert all(each.metrics.accuracy > 0.85 for each in compared.models)
    stored = tna_onnx.features(model, photos, tmp_path / "store")
    assert stored.preprocessing["scale"] == 1
    more = write_folder(tmp_path / "more", *make_images(100, seed=8))
    guarded = tna_onnx.guard(model, photos, eval=more, dry_run=True, add=("confidence",))
    assert any("0 to 255, RGB" in note for note in guarded.notes)


def test_a_file_beside_the_model_says_it(photos: Path, saved: Make) -> None:
    model = saved(mean=IMAGENET[0], std=IMAGENET[1])
    config = {"input_size": [3, SIDE, SIDE], "mean": IMAGENET[0], "std": IMAGENET[1], "crop_pct": 1.0}
    (model.parent / "config.json").write_text(json.dumps(config))
    result = tna_onnx.evaluate(model, photos)
    assert result.recipe_search is None
    assert any("config.json" in note for note in result.notes)
    assert result.preprocessing["mean"] == list(IMAGENET[0])


def test_a_file_beside_the_model_for_other_inputs_is_left_aside(photos: Path, saved: Make) -> None:
    model = saved(scale=1.0)
    (model.parent / "config.json").write_text(json.dumps({"input_size": [3, 224, 224]}))
    result = tna_onnx.evaluate(model, photos)
    assert result.recipe_search is not None
    assert any("was ignored" in note for note in result.notes)


def test_a_stated_recipe_that_loses_is_a_warning(photos: Path, saved: Make) -> None:
    model = saved(mean=0.5, std=0.5)
    result = tna_onnx.evaluate(model, photos, preset=tna_onnx.Recipe(scale=1 / 255, mean=(0.2,), std=(0.5,)))
    assert result.metrics.accuracy < 0.85
    assert any("WARNING" in note and "-1 to 1, RGB" in note for note in result.notes)


@pytest.mark.parametrize("form", ["folder", "array"])
def test_few_images_that_a_model_has_right_are_compared_with_no_other_recipe(
    form: str, photos: Path, saved: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = make_images(48)
    stated: dict[str, Any] = {"preprocessing": tna_onnx.Recipe(scale=1 / 255)}
    few = write_folder(tmp_path / "few", images, labels)
    if form == "array":
        few = tmp_path / "few.npz"
        np.savez(few, image=images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255), labels=labels)
        stated = {}
    model = saved()
    sizes = rows_run(monkeypatch)
    assert with_options(tna_onnx.evaluate, model, few, **stated, device="cpu").metrics.accuracy > 0.85
    # the first images; all of them; three alone and all in parts
    assert sum(sizes) == 32 + 48 + 3 + 48


def test_a_stated_recipe_under_which_a_model_guesses_is_refused(photos: Path, saved: Make) -> None:
    model = saved()
    wrong = tna_onnx.Recipe(scale=1.0)
    refused_by_data("0 to 1, RGB", model, photos, preset=wrong)
    insisted = tna_onnx.evaluate(model, tna_onnx.Data(photos, expect_accuracy=100 / CLASSES), preset=wrong)
    assert any("WARNING" in note for note in insisted.notes)


def test_labels_that_say_nothing_are_refused_with_a_table(tmp_path: Path, saved: Make) -> None:
    images, labels = make_images(200)
    data = write_folder(tmp_path / "mixed", images, np.random.default_rng(0).permutation(labels))
    model = saved()
    with pytest.raises(DataError) as refusal:
        tna_onnx.calibrate(model, data, dry_run=True)
    message = str(refusal.value)
    assert "0 to 255, BGR" in message
    assert "preset cifar10" in message
    # what is stated is taken
    assert tna_onnx.evaluate(model, data, preset=tna_onnx.Recipe(scale=1 / 255)).metrics.accuracy < 0.5


def test_the_list_takes_a_bounded_number_of_runs(tmp_path: Path, saved: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """23 recipes of 300 images each would be 6,900, and none is left out where labels say nothing."""
    images, labels = make_images(300)
    data = write_folder(tmp_path / "mixed", images, np.random.default_rng(0).permutation(labels))
    sizes = rows_run(monkeypatch)
    refused_by_data("better than chance", saved(), data)
    outside = 300
    assert 2000 < sum(sizes) <= recipe_trials.MOST_RUNS + outside


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("many"), *make_images(2400))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "a", "m", "bgr"),
    [
        ({"mean": 0.45}, 1, 0.45, True),
        ({"scale": -1 / 255, "mean": -1.0}, -1, 1, True),  # 1 - x / 255
        ({"scale": -1.0, "mean": -255.0}, -255, 1, False),  # 255 - x
    ],
)
def test_one_scale_and_one_offset_are_found_and_their_flags_are_right(
    fields: dict[str, Any], a: float, m: float, *, bgr: bool, many: Path, saved: Make
) -> None:
    """Within what 2,400 images tell of a network of steep steps."""
    model = saved(bgr=bgr, **fields)
    refusal = cli("evaluate", model, many)
    assert refusal.exit_code == 4, refusal.output
    flags = re.search(r"with that, add (.*?) \(if", " ".join(refusal.output.split()))
    assert flags is not None, refusal.output
    words = dict(zip(flags[1].split()[::2], flags[1].split()[1::2], strict=True))
    scale, mean, std = (float(words.get(f"--{name}", 1 / 255)) for name in ("scale", "mean", "std"))
    # photographs of 0 to 1 have a standard deviation of 0.25
    assert 255 * scale / std == pytest.approx(a, rel=0.25)
    assert mean / (255 * scale) == pytest.approx(m, abs=0.05)
    said = json.loads(ok("evaluate", model, many, *flags[1].split(), "--json", "-").stdout)
    assert said["metrics"]["accuracy"] > 0.82


@pytest.mark.parametrize("seed", [5, 6])
def test_few_images_are_enough_for_a_negative(seed: int, saved: Make, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "images", *make_images(400, seed=seed, channels=1))
    refused_by_data("inverted pixels", saved(mean=1.0, std=-1.0, channels=1), data)


@pytest.mark.parametrize(
    ("count", "fields", "order", "refused"),
    [
        (400, {"mean": 0.5}, [0, 1, 2], "no known recipe"),
        (400, {}, [0, 1, 2], ""),
        (400, {}, [1, 2, 0], "no known recipe.* GBR"),
        (1200, {"mean": 0.5}, [0, 1, 2], "no known recipe"),
    ],
)
def test_no_more_images_are_run_than_the_list_may_take_and_there_are(
    count: int,
    fields: dict[str, Any],
    order: list[int],
    refused: str,
    saved: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scale and an offset, a known recipe and another order of the channels."""
    model = saved(resized=lambda images: images[..., order], **fields)
    data = write_folder(tmp_path / "images", *make_images(count))
    sizes = rows_run(monkeypatch)
    ran: list[int] = []
    search = recipe_choice.better_outside_the_list

    def counted(*args: Any) -> Any:
        try:
            return search(*args)
        finally:
            ran.append(sum(sizes))

    monkeypatch.setattr(recipe_choice, "better_outside_the_list", counted)
    if refused:
        refused_by_data(refused, model, data)
    else:
        assert tna_onnx.evaluate(model, data, device="cpu").metrics.accuracy > 0.8
    assert len(ran) == 1
    assert count < ran[0] <= recipe_trials.MOST_RUNS + count


@pytest.mark.parametrize(
    ("trained", "known"),
    [
        ({"mean": (0.6, 0.45, 0.3), "std": 0.25}, {"mean": IMAGENET[0], "std": IMAGENET[1]}),
        ({"resized": lambda images: 255 * (images / 255) ** 0.7}, {}),
    ],
    ids=["statistics of its own", "a curve of tones"],
)
def test_a_network_near_a_usual_recipe_is_not_taken_for_one_of_it(
    trained: dict[str, Any], known: dict[str, Any], saved: Make, tmp_path: Path
) -> None:
    data = write_folder(tmp_path / "images", *make_images(1200))
    found = tna_onnx.evaluate(saved(**known), data, device="cpu")
    assert found.recipe_search is not None
    refused_by_data("no known recipe", saved(**trained), data)


@pytest.mark.parametrize("bias", [(np.nan,) * CLASSES, (0.0, 0.0, 0.0, -np.inf)], ids=["all", "a masked class"])
def test_scores_that_are_no_numbers_are_refused(bias: tuple[float, ...], photos: Path, saved: Make) -> None:
    path = saved()
    model = onnx.load(path)
    (tensor,) = (each for each in model.graph.initializer if each.name == "bias")
    tensor.CopyFrom(numpy_helper.from_array(np.array(bias, np.float32), "bias"))
    onnx.save(model, path)
    refused_by_data("NaN or infinite", path, photos)


def test_nothing_is_behind_a_recipe_of_infinite_losses() -> None:
    named = NamedRecipe("", tna_onnx.Recipe())
    resolved: Any = None
    infinite, finite = (recipe_trials.Trial(named, resolved, losses=np.full(9, loss)) for loss in (np.inf, 1.0))
    assert infinite.loses_clearly(finite)
    assert not finite.loses_clearly(infinite)
    assert not infinite.loses_clearly(infinite)


def test_many_runs_for_the_way_of_resizing_leave_some_for_the_search(tmp_path: Path, saved: Make) -> None:
    size = (16, 32)
    resized = functools.partial(_as_trained, size=size, crop=False)
    model = saved(mean=0.3, std=0.11, source=size, resized=resized)
    refused_by_data("NLL", model, write_folder(tmp_path / "wide", *make_images(300, size=size)))


@pytest.mark.parametrize(("layout", "axis"), [("NCHW", 1), ("NHWC", 3)])
def test_a_part_of_the_way_is_a_mean_of_what_two_recipes_prepare(layout: Any, axis: int) -> None:
    shape = (None, 3, SIDE, SIDE) if axis == 1 else (None, SIDE, SIDE, 3)
    spec = InputSpec("x", shape, np.dtype(np.float32))
    first = tna_onnx.Recipe(mean=IMAGENET[0], std=IMAGENET[1], layout=layout).resolve(spec)
    second = tna_onnx.Recipe(scale=1.0, mean=(100.0,), std=(50.0,), layout=layout).resolve(spec)
    pixels = np.random.default_rng(0).uniform(0, 255, (2, *shape[1:])).astype(np.float32)
    ones, others = first.values(pixels), second.values(pixels)
    part = unlisted._part_way(first, second, ones, axis)
    np.testing.assert_allclose(part, ones + (others - ones) / 4, atol=1e-5)


def _standardised(images: Any) -> Any:
    """Mean and standard deviation of each image taken out, then brought near those of usual pixels."""
    flat = images.reshape(len(images), -1) / 255
    unit = (flat - flat.mean(axis=1, keepdims=True)) / flat.std(axis=1, keepdims=True)
    return (255 * (0.25 * unit + 0.45)).reshape(images.shape)


@pytest.mark.slow
def test_standardisation_of_each_image_is_found(saved: Make, tmp_path: Path) -> None:
    """Images of any brightness and contrast are one to such a network, and to no other."""
    images, labels = make_images(200)
    rng = np.random.default_rng(0)
    gain, offset = rng.uniform(0.3, 1, (200, 1, 1, 1)), rng.uniform(0, 80, (200, 1, 1, 1))
    data = write_folder(tmp_path / "varied", np.clip(gain * images + offset, 0, 255).astype(np.uint8), labels)
    model = saved(mean=0.45, std=0.25, resized=_standardised)
    out = tmp_path / "out.onnx"
    report = tna_onnx.calibrate(model, data, output=out, map="ts", search="none")
    assert report.recipe_search.chosen == "per image, RGB"
    assert report.preprocessing["per_image"]
    assert tna_onnx.evaluate(out, data).preprocessing == report.preprocessing
    assert tna_onnx.evaluate(model, data, preset="per-image").preprocessing == report.preprocessing
    text = ok("calibrate", model, data, "--map", "ts", "--search", "none", "-o", out).output
    assert "serve with the same: " in " ".join(text.split())


def test_a_negative_is_called_one_where_the_recipe_is_stated(saved: Make, tmp_path: Path) -> None:
    images, labels = make_images(200)
    negative = write_folder(tmp_path / "negative", 255 - images, labels)
    refused_by_data("inverted pixels", saved(), negative, preset=tna_onnx.Recipe(scale=1 / 255))


def test_a_recipe_under_which_a_sure_model_is_hardly_better_than_guessing_is_not_found(
    saved: Make, photos: Path, tmp_path: Path
) -> None:
    """The model was trained on the red channel in the place of all three, which no recipe gives."""
    proto = onnx.load(saved(resized=lambda images: images[..., [0, 0, 0]]))
    for tensor in proto.graph.initializer:
        if tensor.name in ("weight", "bias"):
            tensor.CopyFrom(numpy_helper.from_array(8 * numpy_helper.to_array(tensor), tensor.name))
    onnx.save(proto, tmp_path / "sure.onnx")
    refused_by_data("where guessing has", tmp_path / "sure.onnx", photos)
    expected = tna_onnx.evaluate(tmp_path / "sure.onnx", tna_onnx.Data(photos, expect_accuracy=45))
    assert any("WARNING" in note and "guessing" in note for note in expected.notes)


@pytest.mark.parametrize("imgsz", ["[8, 8]", "8"])
def test_classifiers_of_ultralytics_say_what_they_take(imgsz: str, tmp_path: Path, saved: Make) -> None:
    model = saved(mean=0.0)
    proto = onnx.load(model)
    names = str({k: f"class{k}" for k in range(CLASSES)})
    onnx.helper.set_model_props(proto, {"task": "classify", "imgsz": imgsz, "names": names})
    onnx.save(proto, model)
    data = write_folder(tmp_path / "wide", *make_images(100, size=(16, 24)))
    found = tna_onnx.evaluate(model, data, device="cpu")
    assert found.recipe_search is None
    said = [found.preprocessing[name] for name in ("resize", "crop", "mean", "std", "color", "interpolation")]
    assert said == [8, [8, 8], [0.0] * 3, [1.0] * 3, "RGB", "bilinear"]


@pytest.mark.slow
def test_a_scale_that_no_trained_model_has_is_not_taken_for_dark_images(tmp_path: Path) -> None:
    """A linear network: far out, where pixels of 0 to 255 lie, dark images have the classes of bright ones."""
    images, labels = make_images(1500, seed=1)
    columns = np.concatenate([(images / 255 - 0.5).reshape(len(images), -1) / 0.5, np.ones((len(images), 1))], axis=1)
    gram = columns.T @ columns + np.eye(columns.shape[1])
    solution = 4 * np.linalg.solve(gram, columns.T @ np.eye(CLASSES)[labels])
    nodes = nodes_of("Transpose image > last perm=[0,2,3,1]; Flatten last > z; Gemm z weight bias > logits name=head")
    tensors = {"weight": solution[:-1].astype(np.float32), "bias": solution[-1].astype(np.float32)}
    model = small_model(nodes, {"image": ["N", 3, SIDE, SIDE]}, {"logits": ["N", CLASSES]}, tensors)
    onnx.save(model, tmp_path / "linear.onnx")
    bright, its_labels = make_images(1200)
    dark = write_folder(tmp_path / "dark", (0.6 * bright).astype(np.uint8), its_labels)
    refused_by_data("no trained model has", tmp_path / "linear.onnx", dark)
    normal = tna_onnx.evaluate(tmp_path / "linear.onnx", write_folder(tmp_path / "bright", bright, its_labels))
    assert normal.recipe_search.chosen == "-1 to 1, RGB"


@pytest.mark.slow
def test_images_of_less_contrast_than_those_of_the_training(saved: Make, tmp_path: Path) -> None:
    images, labels = make_images(400)
    dull = write_folder(tmp_path / "dull", (115 + 0.5 * (images - 115.0)).astype(np.uint8), labels)
    model = saved()
    refused_by_data(r"fits the model|trained with another", model, dull)
    stated = tna_onnx.evaluate(model, dull, preset=tna_onnx.Recipe(scale=1 / 255))
    expected = tna_onnx.evaluate(model, tna_onnx.Data(dull, expect_accuracy=100 * stated.metrics.accuracy))
    assert expected.metrics.accuracy >= stated.metrics.accuracy


@pytest.mark.parametrize(
    ("takes", "times", "size", "wrong"),  # wrong: a share of the labels; with a half of them the model is a weak one
    [(1 / 255, 254.6 / 255, "large", 0.5), (1.0, 1 / 255, "small", 0.0)],
)
def test_stored_fractions_on_another_scale_than_the_models(
    tmp_path: Path, saved: Make, takes: float, times: float, size: str, wrong: float
) -> None:
    images, labels = make_images(2000)
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(len(labels)) < wrong, rng.integers(0, CLASSES, len(labels)), labels)
    values = images.transpose(0, 3, 1, 2).astype(np.float32)
    model = saved(scale=takes)
    np.savez(tmp_path / "wrong.npz", image=values * np.float32(times), labels=labels)
    np.savez(tmp_path / "right.npz", image=values * np.float32(takes), labels=labels)
    refused_by_data(f"255 times too {size} for this model", model, tmp_path / "wrong.npz")
    right = tna_onnx.evaluate(model, tmp_path / "right.npz", device="cpu").metrics.accuracy
    told = tna_onnx.evaluate(model, tna_onnx.Data(tmp_path / "wrong.npz", expect_accuracy=100 / CLASSES), device="cpu")
    assert told.metrics.accuracy < right - 0.1


def test_pixels_255_times_too_large_where_the_accuracy_does_not_tell(demo: Demo, tmp_path: Path) -> None:
    """A network that is nearly linear far out: the same classes, with an NLL that no trained model has."""
    data = dict(np.load(demo.calib))
    np.savez(tmp_path / "data.npz", image=data["image"] * 255, labels=data["labels"])
    with pytest.raises(DataError, match="255 times too large"):
        tna_onnx.calibrate(demo.model, tmp_path / "data.npz", dry_run=True, device="cpu")
    told = tna_onnx.evaluate(demo.model, tna_onnx.Data(tmp_path / "data.npz", expect_accuracy=90), device="cpu")
    assert told.metrics.accuracy > 0.9
    assert tna_onnx.evaluate(demo.model, demo.calib, device="cpu").metrics.accuracy > 0.9


@pytest.mark.parametrize("text", ["[]", "{", '{"resize": "big"}', '{"mean": [[1]]}', '{"scale": true}', '{"other": 1}'])
def test_metadata_that_are_no_recipe(text: str, photos: Path, saved: Make) -> None:
    path = saved()
    proto = onnx.load(path)
    onnx.helper.set_model_props(proto, {"tna_onnx.preprocessing": text})
    onnx.save(proto, path)
    refused_by_data("metadata", path, photos)


@pytest.mark.slow
def test_what_is_stated_of_sizes_and_channels_is_kept(photos: Path, saved: Make, tmp_path: Path) -> None:
    """The filter of resizing, and the colours where the axis of the channels is open."""
    size = (16, 32)
    model = saved(scale=1.0, source=size, resized=lambda images: _as_trained(images, size, crop=False))
    data = write_folder(tmp_path / "wide", *make_images(200, size=size))
    found = tna_onnx.evaluate(model, data, preset=tna_onnx.Recipe(interpolation="bicubic"))
    assert {row.name.rpartition(", ")[2] for row in found.recipe_search.recipes} == {"bicubic"}
    tna_onnx.calibrate(model, data, output=tmp_path / "out.onnx", map="ts", search="none")
    later = tna_onnx.evaluate(tmp_path / "out.onnx", data, preset=tna_onnx.Recipe(interpolation="bicubic"))
    assert (later.preprocessing["interpolation"], later.preprocessing["scale"]) == ("bicubic", 1.0)
    again = {"output": tmp_path / "again.onnx", "map": "ts", "search": "none"}
    with_options(
        tna_onnx.calibrate,
        model,
        data,
        preprocessing=tna_onnx.Recipe(scale=1.0, resize=(8, 8), interpolation="bicubic"),
        **again,
    )
    back = tna_onnx.evaluate(tmp_path / "again.onnx", data, preset=tna_onnx.Recipe(interpolation="bilinear"))
    assert (back.preprocessing["interpolation"], back.preprocessing["scale"]) == ("bilinear", 1.0)
    proto = network()
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "channels"
    onnx.save(proto, tmp_path / "open.onnx")
    stated = tna_onnx.Recipe(scale=1 / 255, layout="NCHW", color="RGB")
    assert accuracy(tmp_path / "open.onnx", photos, preprocessing=stated) > 0.85


def doubling(by: str) -> onnx.ModelProto:
    """Return a network that makes images twice as large, by sizes, or by scales, that it computes of their shape."""
    model = resizing()
    del model.graph.node[:3]
    nodes = nodes_of(
        "Shape image > shape; Mul shape twice > sizes; Cast sizes > float_sizes to=FLOAT; Cast shape > sides to=FLOAT; "
        f"Div float_sizes sides > scales; Resize image _ {by} > resized"
    )
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2]), "twice"))
    return model


@pytest.mark.parametrize(
    ("model", "one_size"),
    [
        (resizing, True),
        (functools.partial(resizing, layer=True), False),
        (functools.partial(doubling, "_ sizes"), False),
        (functools.partial(doubling, "scales"), False),
    ],
)
def test_whether_a_network_has_one_size_for_images_of_all(photos: Path, model: Any, one_size: bool) -> None:
    loaded = load_model(model())
    spec = InputSpec("image", (None, 3, None, None), np.dtype(np.float32))
    source = open_source(photos, [spec], CLASSES)
    assert isinstance(source, ImageSource)
    assert resizes_images(loaded, source, 1) == one_size


@pytest.mark.slow
def test_a_refusal_says_that_the_size_is_a_guess_too(mixed: Path, tmp_path: Path) -> None:
    onnx.save(resizing(layer=True), tmp_path / "any.onnx")
    files = sorted(mixed.glob("*/*.png"))[::2]
    order = np.random.default_rng(0).permutation(len(files)) % CLASSES
    rows = [f"{file.relative_to(mixed.parent)},{label}" for file, label in zip(files, order, strict=True)]
    (mixed.parent / "list.csv").write_text("\n".join(["path,label", *rows]))
    with pytest.raises(DataError, match=r"nothing says how[\s\S]*images of any size.*is a guess; state"):
        tna_onnx.evaluate(tmp_path / "any.onnx", mixed.parent / "list.csv")
