"""Scores without class vectors that could be turned, though the graph tells what they are: distances and cosines."""

from __future__ import annotations

import numpy as np

from tna_onnx.graph.linear import adds_up_products
from tna_onnx.graph.stored import Refused
from tna_onnx.graph.walk.distances import SQUARED, distance, products_added_up
from tna_onnx.graph.walk.state import State

__all__ = ["refuse_distances"]

_NO_ORIGIN = "which has no class vectors to tilt: an angle needs an origin, and a distance has none"
_AS_LAYER = "; written as 2 x @ P.T - |P|^2 it is a linear layer, which can be tilted"
_FARTHEST = "whose largest score is that of the farthest class; a classifier's scores are their negatives"


def refuse_distances(state: State) -> None:
    """Refuse scores that are distances, or products that no layer adds up; maps can go behind them.

    Raises:
        Refused: they are.
    """
    kind = distance(state.model, state.tensor)
    if kind:
        # a factor of each class, or one of all
        if not np.all(state.scale < 0):
            raise Refused(f"a {kind} distance, {_FARTHEST}")
        state.measure = f"negative {kind} distances"
        raise Refused(f"a {kind} distance, {_NO_ORIGIN}{_AS_LAYER if kind == SQUARED else ''}")
    if products_added_up(state.model, state.tensor):
        node = state.model.producer(state.tensor)
        product = state.model.producer(node.input[0]) if node is not None else None
        if product is None or adds_up_products(state.model, product, ("ReduceSum",)):
            return
        state.measure = "products of features and constants"
        raise Refused("products of the features and of constants that are repeated for each sample, added up")
