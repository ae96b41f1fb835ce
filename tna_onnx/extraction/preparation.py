"""How images become a model's inputs, settled once for all samples of a run.

What the options say counts; then the model's metadata, or a file of Hugging Face or timm beside the model; then the
labels. A trained model is right under the recipe that it was trained with, so a few images are run under every known
recipe, and the one whose NLL at its own temperature is least is taken. A recipe that is written down somewhere is held
against the known ones in the same way.
"""

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.images.recipes import (
    COARSE,
    NamedRecipe,
    RecipeScore,
    RecipeSearch,
    known_recipes,
    recipe_beside,
    recipe_in,
)
from tna_onnx.data.options import Data
from tna_onnx.data.source import Batch, InputSpec, Source
from tna_onnx.data.sources.image_files import ImageSource
from tna_onnx.data.suspicion import other_scale, takes_images
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.independence import require_independence
from tna_onnx.extraction.recipe_trials import (
    CLEAR,
    DROPPED,
    FIRST,
    SAMPLES,
    Trial,
    TrialImages,
    best_of,
    hardly_differ,
    is_harmless,
    leaves_nothing_to_gain,
    log_scores,
    nll_of,
    race,
    worse_than_guessing,
)
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.cut import cut_between
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import head_provenance
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.runtime import Device, Session

_log = logging.getLogger("tna_onnx")

_ENOUGH = 64  # images after which a recipe that is stated, and the best, needs no more
_MIN_GAIN = 0.05  # of the accuracy
_USUAL_PIXEL = 0.45  # of 0 to 1, in photographs
_VARIATIONS = {  # of pixels of 0 to 1: contrast about the usual pixel, and what is added
    "half the contrast": (0.5, 0.0),
    "twice the contrast": (2.0, 0.0),
    "darker pixels": (1.0, -0.25),
    "brighter pixels": (1.0, 0.25),
    "inverted pixels": (-1.0, 1 - 2 * _USUAL_PIXEL),
}
_LAYERS = {"Conv", "ConvInteger", "QLinearConv", "MatMul", "MatMulInteger", "QLinearMatMul", "Gemm", "Einsum"}
_SIDES = (48, 80)  # of images by which it shows whether a network resizes them
_SHARES = (0.875, 1.0, 0.95, 0.9)  # of the shorter side that a crop keeps, in torchvision, CLIP and timm


class Preparation:
    """Decides how images are preprocessed for a model: once, on the first samples, and the same for all that follow."""

    def __init__(self, model: Model, output: ClassOutput, session: Session) -> None:
        """Take a model, its output that classifies, and a session that has this output."""
        self._model = model
        self._output = output
        self._session = session
        self._stated: Any = None
        self._recipe: Recipe | None = None

    def settle(self, data: Data, source: Source) -> tuple[Data, Source]:
        """Return data and samples with the right preprocessing; as they are, if they are no images."""
        try:
            return self._prepared(data, source)
        except DataError:
            # before samples are blamed: nothing suits a model whose scores are not those of its samples
            with contextlib.suppress(DataError):  # of images that nothing could prepare
                require_independence(self._model, self._session, self._output, source, FIRST)
            raise

    def _prepared(self, data: Data, source: Source) -> tuple[Data, Source]:
        if not isinstance(source, ImageSource):
            self._check_stored(data, source)
            return data, source
        source = replace(source, mixed_sizes=resizes_images(self._model, source, self._session.fixed_batch or 1))
        spec = next(_spec_of(info) for info in self._session.inputs if info.name == source.input_name)
        if self._recipe is None or data.preprocessing != self._stated:
            stated = data.preprocessing
            recipe, source = self._settled(data, source, spec)
            if recipe is None:
                return data, source
            self._stated, self._recipe = stated, recipe
        recipe = self._recipe
        return replace(data, preprocessing=recipe), replace(source, preprocess=recipe.resolve(spec))

    def stated(self, data: Data, spec: InputSpec) -> Recipe | None:
        """Return the recipe in the options, in the model's metadata or in a file beside it; None without one."""
        recipe = data.recipe()
        if not _leaves_open(recipe):
            return recipe
        written, _ = self._written(data, spec)
        return None if written is None else written.override(**_geometry_and_order(recipe))

    def _check_stored(self, data: Data, source: Source) -> None:
        """Refuse stored images on another scale than the model's, by its own accuracy and confidence."""
        names = [info.name for info in self._session.inputs if takes_images(_spec_of(info))]
        if not names or not _labelled(source, self._output) or data.expect_accuracy is not None:
            return
        factors: dict[str, float] = {}
        as_stored: list[NDArray[np.float64]] = []
        rescaled: list[NDArray[np.float64]] = []
        labels: list[NDArray[np.int64]] = []
        for rows in _growing(len(source)):
            batches = list(source.batches(FIRST, rows))
            factors = factors or {name: other_scale(batches[0][name]) for name in names if name in batches[0]}
            if all(factor == 1 for factor in factors.values()):
                return
            labels.append(source.labels[rows])
            as_stored += map(self._logs, batches)
            logs, known = np.concatenate(as_stored), np.concatenate(labels)
            if len(source) < _ENOUGH and leaves_nothing_to_gain(logs, known):
                return
            for batch in batches:
                scaled = {name: values for name, values in batch.items() if factors.get(name, 1) == 1}
                for name in batch.keys() - scaled.keys():
                    scaled[name] = (batch[name] * np.float32(factors[name])).astype(batch[name].dtype)
                rescaled.append(self._logs(scaled))
            name, factor = next((name, factor) for name, factor in factors.items() if factor != 1)
            complaint = _scale_complaint(logs, np.concatenate(rescaled), known, factor)
            if complaint:
                raise DataError(f"{source.describe()}: {name!r} {complaint}")
            if complaint is not None:
                return

    def _logs(self, feeds: Batch) -> NDArray[np.float64]:
        return log_scores(self._session, self._output, feeds)

    def _settled(self, data: Data, source: ImageSource, spec: InputSpec) -> tuple[Recipe | None, ImageSource]:
        """Return the recipe, and the samples with what there is to say about it; no recipe where nothing tells."""
        stated = data.recipe()
        notes: list[str] = []
        if _leaves_open(stated):
            written, notes = self._written(data, spec)
            if written is not None:
                stated = written.override(**_geometry_and_order(stated))
        if not _labelled(source, self._output):
            return (None if _leaves_open(stated) else stated), _noted(source, notes)
        images = TrialImages(source, spec, self._output, self._session)
        if stated is not None and not _leaves_open(stated):
            notes += _against_known(images, stated, insisted=data.expect_accuracy is not None)
            return stated, _noted(source, notes)
        recipe, search, warnings = _search(images, stated or Recipe(), insisted=data.expect_accuracy is not None)
        if recipe is not None and search is not None:
            notes.append(_search_text(search))
            _log.info("preprocessing: %s", notes[-1])
            notes += warnings
            if size_note := _size_note(images, stated or Recipe(), recipe):
                notes.append(size_note)
        return recipe, replace(_noted(source, notes), search=search)

    def _written(self, data: Data, spec: InputSpec) -> tuple[Recipe | None, list[str]]:
        """Return the recipe that the model's file or folder holds, and a note on where it is from."""
        model = self._model
        recipe = recipe_in(head_provenance(model, self._output.name), model.name)
        if recipe is not None:
            return recipe, ["the preprocessing is that of the model's metadata"]
        if model.path is None:
            return None, []
        try:
            recipe_file = recipe_beside(model.path, data.limits)
            if recipe_file is None:
                return None, []
            path, recipe = recipe_file
            resolved = recipe.resolve(spec)
            size = resolved.crop or resolved.resize
            takes = (resolved.height, resolved.width)
            if isinstance(size, tuple) and any(t not in (None, side) for t, side in zip(takes, size, strict=True)):
                raise DataError(f"{path}: makes images of {size[0]} x {size[1]}, which the model does not take")
        except (DataError, UsageError) as error:
            return None, [f"a file next to the model was ignored: {error}"]
        return recipe, [f"the preprocessing is that of {path}"]


def resizes_images(model: Model, source: ImageSource, batch: int) -> bool:
    """Whether a network brings images of any size to its own, before its first layer.

    `batch`: a number of images that it takes.
    """
    if source.preprocess.height and source.preprocess.width:
        return False
    before_layers = {source.input_name}
    for node in model.proto.graph.node:
        # the sizes of images lead to other nodes that resize, behind layers
        if node.op_type in (*_LAYERS, "Shape", "Size") or before_layers.isdisjoint(node.input):
            continue
        if node.op_type in ("Resize", "Upsample"):
            return _has_one_size(model, source, batch, node.output[0])
        before_layers.update(node.output)
    return False


def _has_one_size(model: Model, source: ImageSource, batch: int, tensor: str) -> bool:
    """Whether a tensor has one shape for images of two sizes: it is computed, as a graph has many ways to say sizes."""
    name, recipe = source.input_name, source.preprocess
    shapes = set()
    with contextlib.suppress(DataError, UnsupportedModel):
        session = open_part(model, cut_between(model.proto, {name: recipe.dtype}, [tensor]), Device("cpu"))
        for side in _SIDES:
            shape = [batch, recipe.height or side, recipe.width or side]
            shape.insert(1 if recipe.layout == "NCHW" else 3, len(recipe.mean))
            shapes.add(session.run([tensor], {name: np.zeros(shape, recipe.dtype)})[0].shape)
        return len(shapes) == 1
    return False


def _scale_complaint(
    as_stored: NDArray[np.float64], rescaled: NDArray[np.float64], labels: NDArray[np.int64], factor: float
) -> str | None:
    """Say that images are on another scale than the model's; empty where they are on its own, None where nothing tells.

    `as_stored`, `rescaled`: log-probabilities, or logits, of the images as they are and times the factor, (N, C).
    """
    hits, rescaled_hits = (logs.argmax(axis=1) == labels for logs in (as_stored, rescaled))
    gains = rescaled_hits.astype(np.float64) - hits
    gain, error = float(gains.mean()), float(gains.std()) / math.sqrt(len(labels))
    nll, rescaled_nll = nll_of(as_stored, labels), nll_of(rescaled, labels)
    # an NLL that no trained model has tells where the accuracy is the same
    nonsense = worse_than_guessing(nll, rescaled_nll, as_stored.shape[1])
    if gain > max(_MIN_GAIN, CLEAR * error) or (gain >= 0 and nonsense):
        size, how = ("small", "times") if factor > 1 else ("large", "divided by")
        return (
            f"seems to be 255 times too {size} for this model: on {len(labels):,} samples its accuracy and NLL are "
            f"{hits.mean():.1%} and {nll:.3g}, and {how} 255 {rescaled_hits.mean():.1%} and {rescaled_nll:.3g}; store "
            "the samples as the model was trained on them, or say that this is what the model has: --expect-accuracy "
            f"{100 * hits.mean():.0f}"
        )
    if gain < -CLEAR * error or (gain <= 0 and nll <= rescaled_nll):
        return ""
    return None


def _growing(count: int) -> Iterator[NDArray[np.int64]]:
    """Yield samples all over the data: a few, then as many again, up to `SAMPLES`; none where there are too few."""
    order = np.random.default_rng(0).permutation(count)[:SAMPLES]
    start = 0
    while start < len(order) and len(order) >= FIRST:  # a few samples tell nothing of a mean
        end = max(FIRST, 2 * start)
        yield np.sort(order[start:end])
        start = end


def _spec_of(info: Any) -> InputSpec:
    return InputSpec(info.name, info.shape, info.dtype)


def _leaves_open(recipe: Recipe | None) -> bool:
    """Whether a recipe does not say how pixels are scaled and normalised."""
    return recipe is None or (recipe.scale, recipe.mean, recipe.std) == (None, None, None)


def _geometry_and_order(recipe: Recipe | None) -> dict[str, Any]:
    """Return what a recipe says about sizes, axes and channels."""
    if recipe is None:
        return {}
    names = ("resize", "crop", "crop_pct", "layout", "color", "interpolation")
    return {name: getattr(recipe, name) for name in names if getattr(recipe, name) is not None}


def _noted(source: ImageSource, notes: Iterable[str]) -> ImageSource:
    return replace(source, notes=(*source.notes, *notes))


def _labelled(source: Source, output: ClassOutput) -> bool:
    """Whether labels can tell a right recipe from a wrong one."""
    labels = source.labels
    return bool(len(labels)) and labels.ndim == 1 and labels.min() >= 0 and not (output.several or output.multi_label)


def _search(
    images: TrialImages, stated: Recipe, *, insisted: bool
) -> tuple[Recipe | None, RecipeSearch | None, list[str]]:
    """Find the recipe by the labels, and warnings; nothing where there is no choice."""
    shapes, later_shapes = _shapes(images, stated)
    trials = [images.trial(named) for shape in shapes for named in _candidates(images, stated, shape)]
    if len(trials) + len(later_shapes) < 2:
        return None, None, []
    ran = list(trials)
    ranked = race(images, trials)
    best = _informative(images, stated, ranked, ran)
    if later_shapes:
        variants = [images.trial(_shaped(best.named, shape)) for shape in later_shapes]
        ran += variants
        reshaped = race(images, [best, *variants])[0]
        # what hardly differed under another size may be better under this one
        near = [trial for trial in ranked if trial is not best and hardly_differ(images, trial, best)]
        again = [images.trial(_shaped(trial.named, _shape_of(reshaped.named.recipe))) for trial in near]
        if reshaped is not best and again:
            ran += again
            reshaped = race(images, [reshaped, *again])[0]
        best = reshaped
    best, tied = _settle_ties(images, best, ran)
    rows = sorted((trial.score(best, images.labels) for trial in ran), key=lambda row: (row.behind, row.nll))
    differing = [trial for trial in tied if not is_harmless(images, trial, best)]
    suspicion = best.suspicion(images.labels)
    if differing and (suspicion is None or suspicion.kind != "order"):
        why = f"{best.named.name} and {differing[0].named.name} do equally well on {len(best):,} of them"
        raise DataError(_refusal(images, stated, best, why, rows))
    doubt = ""
    if suspicion is None:
        doubt = _unlike_trained(images, best, ran) or _better_variation(images, best)
    if doubt and not insisted:
        why = f"{doubt} (if it is the images: --expect-accuracy {100 * best.accuracy(images.labels):.0f})"
        raise DataError(_refusal(images, stated, best, why, rows))
    warnings = [f"WARNING: {doubt}"] if doubt else []
    return best.named.recipe, RecipeSearch(best.named.name, bool(tied), tuple(rows)), warnings


def _informative(images: TrialImages, stated: Recipe, ranked: Sequence[Trial], ran: Sequence[Trial]) -> Trial:
    """Return the best recipe, if predictions under it have to do with the labels."""
    best = ranked[0]
    suspicion = best.suspicion(images.labels)
    if suspicion is None or suspicion.kind == "one class":
        return best
    # labels in another order than the classes: the check of the labels, which comes later, says so
    orders = [(trial.suspicion(images.labels), trial) for trial in ranked]
    reordered = [(s.reordered, k) for k, (s, _) in enumerate(orders) if s is not None and s.reordered is not None]
    if reordered:
        return orders[max(reordered)[1]][1]
    rows = sorted((trial.score(best, images.labels) for trial in ran), key=lambda row: (row.behind, row.nll))
    why = f"under none of {len(ran)} known recipes is the model clearly better than chance ({suspicion.chance:.1%})"
    raise DataError(_refusal(images, stated, best, f"{why} on {len(best):,} of them", rows))


def _unlike_trained(images: TrialImages, best: Trial, ran: Sequence[Trial]) -> str:
    """Say that the NLL at the model's own temperature is none of a trained model, where it is one under another recipe.

    Without normalisation inside, networks are nearly linear far out: on dark images, pixels of 0 to 255 may suit better
    a model of normalised ones.
    """
    other = min(ran, key=lambda trial: trial.plain_nll(images.labels))
    nll, other_nll = best.plain_nll(images.labels), other.plain_nll(images.labels)
    if not worse_than_guessing(nll, other_nll, best.logs.shape[1]):
        return ""
    return (
        f"{best.named.name}, the most accurate, gives an NLL of {nll:.3g}, which no trained model has, and "
        f"{other.named.name} one of {other_nll:.3g}, so either the model was trained with another recipe, or on images "
        "of another brightness or contrast"
    )


def _better_variation(images: TrialImages, best: Trial) -> str:
    """Say how pixels may be changed so that the model is clearly more accurate; empty where none of the ways is better.

    A model is best under the recipe that it was trained with, on images like those of its training. If another contrast
    or brightness suits it better, one of the two differs, and accuracies are the same whichever it is.
    """
    resolved = best.resolved
    if resolved.dtype.kind != "f":
        return ""
    varied = []
    for name, (contrast, added) in _VARIATIONS.items():
        offset = 255 * resolved.scale * (_USUAL_PIXEL * (1 - contrast) + added)
        mean = tuple(value - offset for value in resolved.mean)
        recipe = replace(best.named.recipe, scale=resolved.scale * contrast, mean=mean, std=resolved.std)
        varied.append(images.trial(NamedRecipe(name, recipe)))
    for count in (FIRST, SAMPLES):
        images.run(varied, count)
        varied = [trial for trial in varied if best.z(trial) > 0]
    for trial in varied:
        n = min(len(best), len(trial))
        before, after = (float(np.mean(each.logs[:n].argmax(axis=1) == images.labels[:n])) for each in (best, trial))
        if best.loses_clearly(trial) and after - before > _MIN_GAIN:
            return (
                f"no known recipe fits: on {len(trial):,} images the accuracy is {before:.1%} with {best.named.name}, "
                f"and {after:.1%} with {trial.named.name}, so either the model was trained with another recipe, or on "
                "images of another brightness or contrast"
            )
    return ""


def _settle_ties(images: TrialImages, best: Trial, ran: Sequence[Trial]) -> tuple[Trial, list[Trial]]:
    """Run more images under the best recipe and those that are tied with it; return the best and what is still tied."""
    count = len(best)
    while True:
        tied = [trial for trial in ran if trial is not best and len(trial) == count and not trial.loses_clearly(best)]
        # a model that does not care, and sizes that give the same images, need no more of them
        open_ties = [trial for trial in tied if trial.z(best) != 0]
        if not open_ties or count >= len(images.rows):
            return best, tied
        count = min(2 * count, len(images.rows))
        images.run([best, *tied], count)
        best = best_of([best, *tied])


def _candidates(images: TrialImages, stated: Recipe, shape: dict[str, Any]) -> list[NamedRecipe]:
    """Return the known recipes for the input in one size, with what is stated."""
    # the axis of the channels may be open: then the options have said how many there are
    recipes = known_recipes(len(images.source.preprocess.mean), float_input=images.spec.dtype.kind == "f")
    fixed = _geometry_and_order(stated)
    color = fixed.pop("color", None)
    return [
        _shaped(named, {**fixed, **shape, "interpolation": stated.interpolation})
        for named in recipes
        if color in (None, named.recipe.color)
    ]


def _shaped(named: NamedRecipe, shape: dict[str, Any]) -> NamedRecipe:
    """Return a recipe with another way of resizing."""
    plain = named.name.partition(";")[0]
    recipe = replace(named.recipe, **{"resize": None, "crop": None, "crop_pct": None, **shape})
    words = []
    if recipe.resize is not None:
        words.append(f"resize {recipe.resize}")
    if recipe.crop is not None:
        words.append(f"crop {recipe.crop}")
    if recipe.crop_pct is not None:
        words.append(f"crop-pct {recipe.crop_pct:g}")
    if words:
        words.append(recipe.interpolation or "bilinear")
    return NamedRecipe("; ".join([plain, ", ".join(words)] if words else [plain]), recipe)


def _shape_of(recipe: Recipe) -> dict[str, Any]:
    names = ("resize", "crop", "crop_pct", "interpolation")
    return {name: getattr(recipe, name) for name in names}


def _shapes(images: TrialImages, stated: Recipe) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return sizes to begin with, and those to try with the best recipe; empty ones leave images as they are."""
    resolved = stated.resolve(images.spec)
    if resolved.resize is not None or resolved.crop is not None:
        return [{}], []
    height, width = resolved.height, resolved.width
    shapes: list[dict[str, Any]]
    as_they_are = images.fit(stated)
    if height is None and width is None:
        if as_they_are and images.source.mixed_sizes:
            return [{}], []
        # ImageNet's networks are often exported for any size
        imagenet = {"resize": 256, "crop": 224}
        shapes = [{}] if as_they_are else []
        shapes += [imagenet] if images.fit(replace(stated, resize=256, crop=224)) else []
        return shapes or [{}], []
    if height is None or width is None:
        return [{}], []
    if as_they_are:
        return [{}], []
    shapes = [{"resize": (height, width)}]
    if height == width:
        shapes = [{"crop_pct": share} for share in _SHARES] + shapes
    filters = (None, "bicubic") if stated.interpolation is None else (stated.interpolation,)
    first, *rest = [{**shape, "interpolation": name} for name in filters for shape in shapes]
    return [first], rest


def _against_known(images: TrialImages, stated: Recipe, *, insisted: bool) -> list[str]:
    """Hold a recipe that is stated against the known ones; return a warning if another is clearly better."""
    base = images.trial(NamedRecipe("the stated recipe", stated))
    images.run([base], FIRST)
    few = len(images.rows) < _ENOUGH  # those of the first round are all that are compared
    if few and leaves_nothing_to_gain(base.logs, images.labels[: len(base)]):
        return []
    shape = {name: value for name, value in _shape_of(stated).items() if value is not None}
    plain = replace(stated, scale=None, mean=None, std=None, color=None)
    rivals = []
    for named in _candidates(images, plain, shape):
        name, _, order = named.name.partition(";")[0].partition(", ")
        trial = images.trial(named)
        usual = name in COARSE and order in ("", "RGB", "BGR") and (name != "mnist" or not order)
        if usual and not hardly_differ(images, trial, base):
            rivals.append(trial)
    tried = [base, *rivals]
    count = FIRST
    best = base
    while count <= min(SAMPLES, max(FIRST, len(images.rows))) and rivals:
        images.run([base, *rivals], count)
        best = best_of([base, *rivals])
        if best is base and count >= _ENOUGH:
            break
        rivals = [trial for trial in rivals if trial.z(best) <= DROPPED]
        count *= 2
    labels = images.labels
    plain_best = min(tried, key=lambda trial: trial.plain_nll(labels))
    enough = len(base) >= FIRST  # a few images tell nothing of a mean
    nonsense = enough and worse_than_guessing(base.plain_nll(labels), plain_best.plain_nll(labels), base.logs.shape[1])
    if nonsense and plain_best.accuracy(labels) >= base.accuracy(labels):
        best = plain_best
    elif best is base or base.z(best) <= CLEAR:
        return []
    text = (
        f"the model seems to be trained with another preprocessing: accuracy is {base.accuracy(labels):.1%} with the "
        f"stated one and {best.accuracy(labels):.1%} with {best.named.name} ({best.named.flags}), on "
        f"{len(base):,} images"
    )
    suspicion = base.suspicion(labels)
    if insisted or (not nonsense and (suspicion is None or suspicion.kind == "order")):
        return [f"WARNING: {text}"]
    why = "next to chance with the stated one"
    if nonsense:
        why = f"with an NLL of {base.plain_nll(labels):.3g} and {plain_best.plain_nll(labels):.3g}"
    raise DataError(
        f"{images.source.describe()}: {text}, {why}; state the other, or say that this is what the model has: "
        f"--expect-accuracy {100 * base.accuracy(labels):.0f}"
    )


def _size_note(images: TrialImages, stated: Recipe, chosen: Recipe) -> str:
    """Say to which size images were brought, where neither the model nor the recipe that is stated determines it.

    Empty where one of them does.
    """
    resolved = stated.resolve(images.spec)
    sizes = (resolved.height, resolved.width, resolved.resize, resolved.crop)
    text = "the model takes images of any size, and nothing says which one it was trained with"
    if any(sizes) or (chosen.resize is None and images.source.mixed_sizes):
        return ""
    if chosen.resize is None:
        return f"{text}: these go in as they are; if it is another one, state --resize and --crop"
    return f"WARNING: {text}: the size of ImageNet's networks is a guess; state --resize and --crop"


def _search_text(search: RecipeSearch) -> str:
    """Say which recipe was found."""
    best = next(row for row in search.recipes if row.name == search.chosen)
    text = (
        f"preprocessing found by the labels: {best.name}, with an accuracy of {best.accuracy:.1%} and, at its best "
        f"temperature, an NLL of {best.nll:.3f} on {best.samples:,} images"
    )
    runner_up = next((row for row in search.recipes if row is not best), None)
    if runner_up is not None:
        text += f"; next of {len(search.recipes)} recipes is {runner_up.name} ({runner_up.accuracy:.1%}"
        text += f", NLL {runner_up.nll:.3f})"
    if search.tied:
        text += ", which does as well as far as these images tell and hardly differs"
    return f"{text}; {best.flags or '--color RGB'} says the same"


def _refusal(images: TrialImages, stated: Recipe, best: Trial, why: str, rows: Sequence[RecipeScore]) -> str:
    """Return the message that nothing tells the preprocessing, with a table of what was tried."""
    width = max(len(row.name) for row in rows)
    lines = [
        f"  {row.name:{width}}  accuracy {100 * row.accuracy:5.1f} %  NLL {row.nll:6.3f}  {row.flags or '--color RGB'}"
        for row in rows
    ]
    if size_note := _size_note(images, stated, best.named.recipe):
        lines.append(size_note.removeprefix("WARNING: "))
    head = (
        f"{images.source.describe()}: nothing says how these images are prepared for the model, and {why}; state the "
        "preprocessing that it was trained with by the flags in the last column, or others (if none is right, check "
        "the labels and the order of the classes):"
    )
    return "\n".join([head, *lines])
