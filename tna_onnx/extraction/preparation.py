"""How images become a model's inputs, settled once for all samples of a run.

Options count first, then the model's metadata, then a file of Hugging Face or timm in its folder, then the labels
(`recipe_choice`). A recipe that is written down is held against the known ones in the same way.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.images.known_recipes import other_scale, takes_images
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.images.recipe_files import recipe_beside, recipe_in, stated_recipe, ultralytics_recipe
from tna_onnx.data.options import Data
from tna_onnx.data.source import Batch, InputSpec, Source
from tna_onnx.data.sources.image_files import ImageSource
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.independence import require_independence
from tna_onnx.extraction.recipe_choice import (
    check_stated,
    choose_recipe,
    geometry_and_order,
    leaves_open,
)
from tna_onnx.extraction.recipe_trials import (
    CLEAR,
    ENOUGH,
    FIRST,
    SAMPLES,
    TrialImages,
    leaves_nothing_to_gain,
    log_scores,
    nll_of,
    worse_than_guessing,
)
from tna_onnx.extraction.sessions import input_specs, open_part
from tna_onnx.graph.cut import cut_between
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import ClassOutput
from tna_onnx.runtime import Device, Session

_MIN_GAIN = 0.05  # of the accuracy
_LAYERS = {"Conv", "ConvInteger", "QLinearConv", "MatMul", "MatMulInteger", "QLinearMatMul", "Gemm", "Einsum"}
_SIDES = (48, 80)  # of images by which it shows whether a network resizes them


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
            if isinstance(source, ImageSource):
                return self._prepared(data, source)
            self._check_stored(data, source)
        except DataError:
            # before samples are blamed: nothing suits a model whose scores are not those of its samples
            with contextlib.suppress(DataError):  # of images that nothing could prepare
                require_independence(self._model, self._session, self._output, source, FIRST)
            raise
        return data, source

    def _prepared(self, data: Data, source: ImageSource) -> tuple[Data, Source]:
        source = replace(source, mixed_sizes=resizes_images(self._model, source, self._session.fixed_batch or 1))
        spec = next(spec for spec in input_specs(self._session) if spec.name == source.input_name)
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
        recipe, _ = self._stated_or_written(data, spec)
        return None if leaves_open(recipe) else recipe

    def _stated_or_written(self, data: Data, spec: InputSpec) -> tuple[Recipe, list[str]]:
        """Return what the options say, else what is written, with the sizes and the order in the options; and notes."""
        stated = stated_recipe(data) or Recipe()
        if not leaves_open(stated):
            return stated, []
        written, notes = self._written(data, spec)
        return (stated if written is None else written.override(**geometry_and_order(stated))), notes

    def _check_stored(self, data: Data, source: Source) -> None:
        """Refuse stored images on another scale than the model's, by its own accuracy and confidence."""
        names = [spec.name for spec in input_specs(self._session) if takes_images(spec)]
        if not names or not _labelled(source, self._output) or data.expect_accuracy is not None:
            return
        as_stored: list[NDArray[np.float64]] = []
        rescaled: list[NDArray[np.float64]] = []
        labels: list[NDArray[np.int64]] = []
        for rows in _growing(len(source)):
            batches = list(source.batches(FIRST, rows))
            if not labels:
                scales = {name: other_scale(batches[0][name]) for name in names if name in batches[0]}
                factors = {name: factor for name, factor in scales.items() if factor != 1}
            if not factors:
                return
            labels.append(source.labels[rows])
            as_stored += map(self._logs, batches)
            logs, targets = np.concatenate(as_stored), np.concatenate(labels)
            if len(source) < ENOUGH and leaves_nothing_to_gain(logs, targets):
                return
            for batch in batches:
                scaled = {k: (batch[k] * np.float32(f)).astype(batch[k].dtype) for k, f in factors.items()}
                rescaled.append(self._logs({**batch, **scaled}))
            name, factor = next(iter(factors.items()))
            complaint = _scale_complaint(logs, np.concatenate(rescaled), targets, factor)
            if complaint:
                raise DataError(f"{source.describe()}: {name!r} {complaint}")
            if complaint is not None:
                return

    def _logs(self, feeds: Batch) -> NDArray[np.float64]:
        return log_scores(self._session, self._output, feeds)

    def _settled(self, data: Data, source: ImageSource, spec: InputSpec) -> tuple[Recipe | None, ImageSource]:
        """Return the recipe, and the samples with what there is to say about it; no recipe where nothing tells."""
        stated, notes = self._stated_or_written(data, spec)
        recipe = None if leaves_open(stated) else stated
        search = None
        if _labelled(source, self._output):
            images = TrialImages(source, spec, self._output, self._session)
            insisted = data.expect_accuracy is not None
            if recipe is None:
                recipe, search, more_notes = choose_recipe(images, stated, insisted=insisted)
            else:
                more_notes = check_stated(images, stated, insisted=insisted)
            notes += more_notes
        return recipe, replace(source, notes=(*source.notes, *notes), search=search)

    def _written(self, data: Data, spec: InputSpec) -> tuple[Recipe | None, list[str]]:
        """Return the recipe that the model's file or folder holds, and a note on where it is from."""
        model = self._model
        recipe = recipe_in(model.provenance_of(self._output.name), model.name)
        if recipe is not None:
            return recipe, ["the preprocessing is that of the model's metadata"]
        recipe = ultralytics_recipe(model.metadata)
        if recipe is not None:
            return recipe, ["the model's metadata name Ultralytics' classifiers, whose preprocessing is taken"]
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
            f"{100 * hits.mean():.1f} % and {nll:.3g}, and {how} 255 {100 * rescaled_hits.mean():.1f} % and "
            f"{rescaled_nll:.3g}; store the samples as the model was trained on them, or say that this is what the "
            f"model has: --expect-accuracy {100 * hits.mean():.0f}"
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


def _labelled(source: Source, output: ClassOutput) -> bool:
    """Whether labels can tell a right recipe from a wrong one."""
    labels = source.labels
    return bool(len(labels)) and labels.ndim == 1 and labels.min() >= 0 and not (output.several or output.multi_label)
