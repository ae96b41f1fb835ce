"""How the preprocessing of images was found by their labels, as reports hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tna_onnx.data.source import Source


@dataclass(frozen=True)
class RecipeScore:
    """The accuracy and NLL of a model on images under one recipe.

    Attributes:
        name: of the recipe.
        flags: options that ask for it.
        samples: images that were run under it.
        accuracy: of the model on them, a fraction.
        nll: NLL on them at the recipe's own temperature, nats.
        behind: how much larger than that of the best recipe the NLL is on the same images, in units of its standard
            error.
    """

    name: str
    flags: str
    samples: int
    accuracy: float
    nll: float
    behind: float


@dataclass(frozen=True)
class RecipeSearch:
    """The result of searching for the preprocessing of images that nothing states.

    Attributes:
        chosen: name of the recipe that is used.
        tied: whether recipes that hardly differ from it do as well, as far as these samples tell.
        recipes: all that were tried, the best first.
    """

    chosen: str
    tied: bool
    recipes: tuple[RecipeScore, ...]


def source_search(source: Source) -> RecipeSearch | None:
    """Return how the preprocessing of images was found; None where something says what it is."""
    search: RecipeSearch | None = getattr(source, "search", None)
    return search
