"""The recipe of images, chosen by their labels, or held against the known ones where it is stated.

The recipe with the least NLL at its own temperature is taken. It is refused where another one does as well and differs,
where something else does clearly better (`unlisted`), and where no trained model is so far off.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tna_onnx.data.images.known_recipes import COARSE, NamedRecipe, RecipeScore, RecipeSearch, known_recipes
from tna_onnx.data.images.preprocess import Recipe, ResolvedRecipe
from tna_onnx.errors import DataError
from tna_onnx.extraction.recipe_trials import (
    CLEAR,
    ENOUGH,
    FIRST,
    MOST_RUNS,
    SAMPLES,
    START,
    Trial,
    TrialImages,
    best_of,
    is_harmless,
    race,
    within_noise,
    worse_than_guessing,
)
from tna_onnx.extraction.unlisted import better_outside_the_list

_log = logging.getLogger("tna_onnx")

_RIVALS = 3  # recipes of the least NLL at the model's own temperature
_SHARES = (0.875, 1.0, 0.95, 0.9)  # of the shorter side that a crop keeps, in torchvision, CLIP and timm


def leaves_open(recipe: Recipe) -> bool:
    """Whether a recipe does not say how pixels are scaled and normalised."""
    return not (recipe.scale or recipe.mean or recipe.std or recipe.per_image)


_SIZES = ("resize", "crop", "crop_pct", "interpolation")


def geometry_and_order(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe says about sizes, axes and channels."""
    return _stated_of(recipe, (*_SIZES, "layout", "color"))


def _stated_of(recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(recipe, name)) is not None}


def choose_recipe(
    images: TrialImages, stated: Recipe, *, insisted: bool
) -> tuple[Recipe | None, RecipeSearch | None, list[str]]:
    """Find the recipe by the labels, and what there is to say about it; nothing where there is no choice."""
    shapes, later_shapes = _shapes(images, stated)
    trials = [images.trial(named) for shape in shapes for named in _candidates(images, stated, shape)]
    if len(trials) + len(later_shapes) < 2:
        return None, None, []
    ran = list(trials)
    ranked = race(images, trials)
    best = _reordered(ranked)
    if later_shapes:
        best = _reshaped(images, best, ranked, later_shapes, ran)
    best, tied = _settle_ties(images, best, ran)
    rows = sorted((trial.score(best) for trial in ran), key=lambda row: (row.behind, row.nll))
    if math.isinf(best.nll):
        recipe = f"{best.named.name}, the best of {len(ran)} known recipes"
        why = f"with {recipe}, some scores of {len(best):,} images are NaN or infinite"
        raise DataError(_refusal(images, stated, best, why, rows))
    differing = [trial for trial in tied if not is_harmless(images, trial, best)]
    if not insisted:
        better = better_outside_the_list(images, best)
        if better is not None and not better[0].is_rarely_right:
            raise _unfit(images, best, *better)
    suspicion = best.suspicion
    why = ""
    if suspicion is not None and suspicion.kind == "chance":
        chance = f"clearly better than chance ({100 * suspicion.chance:.1f} %)"
        why = f"under none of {len(ran)} known recipes is the model {chance} on {len(best):,} of them"
    elif differing and (suspicion is None or suspicion.kind != "order"):
        why = f"{best.named.name} and {differing[0].named.name} do equally well on {len(differing[0]):,} of them"
    if why:
        raise DataError(_refusal(images, stated, best, why, rows))
    doubt = ""
    if suspicion is None:
        doubt = _unlike_trained(images, best, ran) or _rarely_right(best)
    if doubt and not insisted:
        raise DataError(_refusal(images, stated, best, doubt + _if_images(best), rows))
    search = RecipeSearch(best.named.name, bool(tied), tuple(rows))
    notes = [_search_text(search), f"WARNING: {doubt}" if doubt else "", _size_note(images, stated, best.named.recipe)]
    _log.info("preprocessing: %s", notes[0])
    return best.named.recipe, search, [*filter(None, notes)]


def _reordered(ranked: Sequence[Trial]) -> Trial:
    """Return the best recipe; or where labels fit it no better than chance, but another one in another order, that one.

    The check of the labels, which comes later, says so.
    """
    suspicions = [trial.suspicion for trial in ranked]
    if suspicions[0] is None or suspicions[0].kind == "one class":
        return ranked[0]
    reordered = [(s.reordered, k) for k, s in enumerate(suspicions) if s is not None and s.reordered is not None]
    return ranked[max(reordered)[1]] if reordered else ranked[0]


def _reshaped(
    images: TrialImages, best: Trial, ranked: Sequence[Trial], shapes: Sequence[dict[str, Any]], ran: list[Trial]
) -> Trial:
    """Return the best recipe with the way of resizing that suits it best; what is run for that joins `ran`."""
    variants = [images.trial(_shaped(best.named, shape)) for shape in shapes]
    ran += variants
    reshaped = race(images, [best, *variants])[0]
    # what hardly differed under another size may be better under this one
    near = [trial for trial in ranked if trial is not best and within_noise(images, trial, best)]
    resized = [images.trial(_shaped(trial.named, _stated_of(reshaped.named.recipe, _SIZES))) for trial in near]
    if reshaped is best or not resized:
        return reshaped
    ran += resized
    return race(images, [reshaped, *resized])[0]


def _unlike_trained(images: TrialImages, best: Trial, ran: Sequence[Trial]) -> str:
    """Say that the NLL at the model's own temperature is none of a trained model, where it is one under another recipe.

    Without normalisation inside, networks are nearly linear far out: on dark images, pixels of 0 to 255 may suit better
    a model of normalised ones.
    """
    rivals = sorted(ran, key=lambda trial: trial.plain_nll)[:_RIVALS]
    images.run(rivals, FIRST)
    rival = min(rivals, key=lambda trial: trial.plain_nll)
    if not worse_than_guessing(best.plain_nll, rival.plain_nll, best.n_classes):
        return ""
    return (
        f"with {best.named.name}, which suits these images best, the NLL is {best.plain_nll:.3g}, which no trained "
        f"model has, and with {rival.named.name} it is {rival.plain_nll:.3g}. The model was trained with another "
        "recipe, or on images of another brightness or contrast"
    )


def _rarely_right(best: Trial) -> str:
    """Say that the model is right far less often than it says, and hardly better than guessing in NLL."""
    if not best.is_rarely_right:
        return ""
    return (
        f"the best known recipe is {best.named.name}. With it the model is right on {100 * best.accuracy:.1f} % of "
        f"{len(best):,} images at a mean confidence of {100 * best.confidence:.1f} %, and its NLL is "
        f"{best.plain_nll:.2f}, where guessing has {math.log(best.n_classes):.2f}. It was probably trained with "
        "another recipe"
    )


def _unfit(images: TrialImages, best: Trial, better: Trial, how: str) -> DataError:
    """Return the error for images that suit the model clearly better in another way."""
    count = len(better)
    same = replace(best, logs=best.logs[:count], losses=best.losses[:count], labels=best.labels[:count])
    before, after = (f"{100 * trial.accuracy:.1f} % (NLL {trial.nll:.3f})" for trial in (same, better))
    return DataError(
        f"{images.source.describe()}: no known recipe of preprocessing fits the model: on {count:,} of these images "
        f"the accuracy is {before} with {best.named.name}, and {after} with {how}{_if_images(best)}"
    )


def _if_images(best: Trial) -> str:
    """Return what to type where the recipe is right and the images are hard."""
    return f" (if {best.named.name} is right: --expect-accuracy {100 * best.accuracy:.0f})"


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
        more = sum(count - len(trial) for trial in (best, *tied))
        if sum(map(len, ran)) + more > MOST_RUNS:
            return best, tied
        images.run([best, *tied], count)
        best = best_of([best, *tied])


def _candidates(images: TrialImages, stated: Recipe, shape: dict[str, Any]) -> list[NamedRecipe]:
    """Return the known recipes for the input in one size, with what is stated."""
    # the axis of the channels may be open: then the options have said how many there are
    recipes = known_recipes(len(images.source.preprocess.mean), float_input=images.spec.dtype.kind == "f")
    fixed = geometry_and_order(stated)
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
    share = None if recipe.crop_pct is None else f"{recipe.crop_pct:g}"
    sizes = {"resize": recipe.resize, "crop": recipe.crop, "crop_pct": share}
    words = [f"{name} {value}" for name, value in sizes.items() if value is not None]
    if not words:
        return NamedRecipe(plain, recipe)
    return NamedRecipe(f"{plain}; {', '.join([*words, recipe.interpolation or 'bilinear'])}", recipe)


def _shapes(images: TrialImages, stated: Recipe) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return sizes to begin with, and those to try with the best recipe; empty ones leave images as they are."""
    resolved = stated.resolve(images.spec)
    if resolved.resize is not None or resolved.crop is not None:
        return [{}], []
    height, width = resolved.height, resolved.width
    as_they_are = images.fit(stated)
    if height is None and width is None and not (as_they_are and images.source.mixed_sizes):
        # ImageNet's networks are often exported for any size
        imagenet = {"resize": 256, "crop": 224}
        if images.fit(replace(stated, resize=256, crop=224)):
            return [{}, imagenet] if as_they_are else [imagenet], []
    if height is None or width is None or as_they_are:
        return [{}], []
    shapes: list[dict[str, Any]] = [{"resize": (height, width)}]
    if height == width:
        shapes = [{"crop_pct": share} for share in _SHARES] + shapes
    filters = (None, "bicubic") if stated.interpolation is None else (stated.interpolation,)
    first, *rest = [{**shape, "interpolation": name} for name in filters for shape in shapes]
    return [first], rest


def check_stated(images: TrialImages, stated: Recipe, *, insisted: bool) -> list[str]:
    """Hold a recipe that is stated against the known ones; return a warning if another is clearly better."""
    base = images.trial(NamedRecipe("the stated recipe", stated))
    images.run([base], FIRST)
    # those of the first round are all that are compared
    if len(images.rows) < ENOUGH and base.leaves_nothing_to_gain:
        return []
    plain = replace(stated, scale=None, mean=None, std=None, color=None)
    rivals = []
    for named in _candidates(images, plain, {}):
        name, _, order = named.name.partition(";")[0].partition(", ")
        trial = images.trial(named)
        usual = name in COARSE and order in ("", "RGB", "BGR") and (name != "mnist" or not order)
        if usual and not within_noise(images, trial, base):
            rivals.append(trial)
    inverted = images.trial(NamedRecipe("inverted pixels", _inverted(stated, base.resolved)))
    if base.resolved.dtype.kind == "f":
        rivals.append(inverted)
    tried = [base, *rivals]
    count = START
    best = base
    while count <= min(SAMPLES, max(FIRST, len(images.rows))) and rivals:
        images.run([base, *rivals], count)
        best = best_of([base, *rivals])
        if best is base and count >= ENOUGH:
            break
        rivals = [trial for trial in rivals if not trial.loses_clearly(base)]
        count *= 2
    plain_best = min(tried, key=lambda trial: trial.plain_nll)
    images.run([plain_best], len(base))
    enough = len(base) >= FIRST  # a few images tell nothing of a mean
    nonsense = enough and worse_than_guessing(base.plain_nll, plain_best.plain_nll, base.n_classes)
    if nonsense and plain_best.accuracy >= base.accuracy:
        best = plain_best
    elif best is base or base.z(best) <= CLEAR:
        return []
    text = (
        f"the model seems to have been trained with other preprocessing: on {len(base):,} images the accuracy is "
        f"{100 * base.accuracy:.1f} % with what is stated, and {100 * best.accuracy:.1f} % with "
        f"{best.named.name} ({best.named.flags})"
    )
    suspicion = base.suspicion
    if insisted or (not nonsense and (suspicion is None or (suspicion.kind == "order" and best is not inverted))):
        return [f"WARNING: {text}"]
    why = "The stated one leaves the model next to chance"
    if nonsense:
        why = f"The NLL is {base.plain_nll:.3g} and {plain_best.plain_nll:.3g}"
    raise DataError(
        f"{images.source.describe()}: {text}. {why}. State the other, or say that this is the model's accuracy: "
        f"--expect-accuracy {100 * base.accuracy:.0f}"
    )


def _inverted(stated: Recipe, resolved: ResolvedRecipe) -> Recipe:
    """Return what a recipe makes of 255 - x: ((255 - x) scale - mean) / std."""
    if stated.per_image:
        return replace(stated, scale=-resolved.scale)
    mean = tuple(value - 255 * resolved.scale for value in resolved.mean)
    return replace(stated, scale=-resolved.scale, mean=mean, std=resolved.std)


def _size_note(images: TrialImages, stated: Recipe, recipe: Recipe) -> str:
    """Say to which size images were brought, where neither the model nor the recipe that is stated determines it.

    Empty where one of them does.
    """
    resolved = stated.resolve(images.spec)
    sizes = (resolved.height, resolved.width, resolved.resize, resolved.crop)
    text = "the model takes images of any size, and nothing says which one it was trained with"
    if any(sizes) or (recipe.resize is None and images.source.mixed_sizes):
        return ""
    if recipe.resize is None:
        return f"{text}: these go in as they are; if it is another one, state --resize and --crop"
    return f"WARNING: {text}: the size of ImageNet's networks is a guess; state --resize and --crop"


def _search_text(search: RecipeSearch) -> str:
    """Say which recipe was found."""
    best = next(row for row in search.recipes if row.name == search.chosen)
    text = (
        f"preprocessing found by the labels: {best.name}, with an accuracy of {100 * best.accuracy:.1f} % and, at its "
        f"best temperature, an NLL of {best.nll:.3f} on {best.samples:,} images"
    )
    runner_up = next((row for row in search.recipes if row is not best), None)
    if runner_up is not None:
        text += f"; next of {len(search.recipes)} recipes is {runner_up.name} ({100 * runner_up.accuracy:.1f} %"
        text += f", NLL {runner_up.nll:.3f})"
    if search.tied:
        text += ", which these images cannot tell apart from it"
    return f"{text}; to skip this search, pass {best.flags}"


def _refusal(images: TrialImages, stated: Recipe, best: Trial, why: str, rows: Sequence[RecipeScore]) -> str:
    """Return the message that nothing tells the preprocessing, with a table of what was tried."""
    width = max(len(row.name) for row in rows)
    lines = [
        f"  {row.name:{width}}  accuracy {100 * row.accuracy:5.1f} %  NLL {row.nll:6.3f}  {row.flags}" for row in rows
    ]
    if size := _size_note(images, stated, best.named.recipe):
        lines.append(size.removeprefix("WARNING: "))
    head = (
        f"{images.source.describe()}: nothing says how these images are prepared for the model, and {why}. State the "
        "preprocessing that it was trained with: the flags in the last column, or others. If none is right, check the "
        "labels and the order of the classes:"
    )
    return "\n".join([head, *lines])
