"""Small problems for studies: an overconfident linear head on random features."""

import numpy as np

from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.studies.recalibrations import StudyData


def problem(*, n: int = 24, classes: int = 4, samples: int = 400, seed: int = 1, bias: float = 0.5) -> StudyData:
    """Labels drawn at temperature 3 on two sets of samples."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((classes, n)).astype(np.float32)
    shift = (bias * rng.standard_normal(classes)).astype(np.float32)
    tables = []
    for _ in range(2):
        features = np.maximum(rng.standard_normal((samples, n)), 0).astype(np.float32)
        logits = features @ weight.T + shift
        labels = np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=1)
        tables.append(FeatureTable(features, labels.astype(np.int64)))
    return StudyData(weight, shift, *tables)
