"""Scores of whole models by several workers: each runs its chunks of samples, and returns 17 bytes a sample.

A chunk is whole batches, the same ones as a single process makes, so scores have the same bits. Metrics are computed of
all scores by the process that asked for them: errors of calibration in equal bins need no merging of sorted parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.data.options import Data
from tna_onnx.engine.collecting import reading_engine
from tna_onnx.engine.outputs import score_batches
from tna_onnx.engine.protocol import Engine
from tna_onnx.extraction.agreed import (
    require_model,
    require_provider,
    require_samples_of,
    require_versions,
    samples_key,
    versions,
)
from tna_onnx.extraction.keys import model_key
from tna_onnx.extraction.sessions import input_specs, open_model
from tna_onnx.extraction.store import chunk_size
from tna_onnx.graph.in_memory import model_bytes
from tna_onnx.graph.limits import ModelLimits
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.progress import Progress
from tna_onnx.runtime import Device, Session
from tna_onnx.runtime.session import CUDA

__all__ = ["Scorers", "scorers_on"]


@dataclass(frozen=True, eq=False)
class Scorers:
    """Samples that workers open by themselves, to score a model.

    Attributes:
        engine: whose workers.
        data: what the user named.
    """

    engine: Engine
    data: Data

    def score(
        self,
        model: Model,
        device: Device,
        output: ClassOutput,
        source: Source,
        names: tuple[str, ...] | None,
        provider: str,
        batch_size: int,
        progress: Progress,
    ) -> tuple[SampleScores, NDArray[np.int64]]:
        """Run a model over samples and score what it says, as `score_model` does.

        Args:
            model: to run.
            device: where to run it.
            output: the output that classifies, with one prediction of one class a sample.
            source: the samples, opened here.
            names: of the classes, if known.
            provider: execution provider that each worker must have too.
            batch_size: samples per run.
            progress: called with (stage, done, total).

        Returns:
            (scores, predicted classes (N,)).

        Raises:
            DataError, DeviceError, UsageError: as `ChunkScorer` and the engine raise them.
        """
        chunk = chunk_size(batch_size)
        scorer = ChunkScorer(
            model=model.path or model_bytes(model.proto),
            limits=model.limits,
            key={**model_key(model), **samples_key(source), "provider": provider, "versions": versions()},
            output=output,
            device=device,
            data=self.data,
            class_names=names,
            batch_size=batch_size,
        )
        places = ((start, min(start + chunk, len(source))) for start in range(0, len(source), chunk))
        parts = []
        done = 0
        progress("evaluate", done, len(source))
        with contextlib.closing(self.engine.map_chunks(scorer, places)) as results:
            for part in results:
                parts.append(part)
                done += len(part.scores)
                progress("evaluate", done, len(source))
        scores = SampleScores.concatenate([part.scores for part in parts])
        return scores, np.concatenate([part.predicted for part in parts]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Scored:
    """What a worker returns of a chunk.

    Attributes:
        scores: of its samples.
        predicted: classes, int32: half of what indices take.
    """

    scores: SampleScores
    predicted: NDArray[np.int32]


@dataclass(eq=False)
class ChunkScorer:
    """Scores chunks of samples; sent to workers before it is called.

    Attributes:
        model: path of the model, or its bytes.
        limits: how much of the model is taken in.
        key: digests of model and samples, execution provider and versions of libraries, as the driver has them.
        output: the output that classifies.
        device: where to run.
        data: the samples.
        class_names: in the order of the model's output, if known.
        batch_size: samples per run.
    """

    model: Path | bytes
    limits: ModelLimits
    key: Mapping[str, Any]
    output: ClassOutput
    device: Device
    data: Data
    class_names: tuple[str, ...] | None
    batch_size: int
    _opened: tuple[Session, Source] | None = field(default=None, init=False, repr=False)

    @property
    def needs_gpu(self) -> bool:
        """Whether a worker needs a GPU."""
        return bool(self.key["provider"] == CUDA)

    def __call__(self, start: int, stop: int) -> Scored:
        """Score the samples from one to another.

        Raises:
            UsageError: the worker sees another model than the driver.
            DataError: it sees other samples, or the output cannot be used.
            DeviceError: it has other versions of libraries, or another device.
        """
        if self._opened is None:
            self._opened = self._open()
        session, source = self._opened
        parts = list(score_batches(session, self.output, source, self.batch_size, slice(start, stop)))
        predicted = np.concatenate([classes for _, classes in parts]).astype(np.int32)
        return Scored(SampleScores.concatenate([scores for scores, _ in parts]), predicted)

    def _open(self) -> tuple[Session, Source]:
        require_versions(self.key["versions"])
        model = load_model(self.model, self.limits)
        require_model(model, self.key)
        session = open_model(model, self.device)
        require_provider(session.provider, self.key["provider"])
        source = self.data.open(input_specs(session), self.output.n_classes, self.class_names)
        require_samples_of(source, self.key)
        return session, source


def scorers_on(engine: str, data: Data) -> Scorers | None:
    """Return how workers score a model on samples; see `reading_engine`."""
    chosen = reading_engine(engine, data)
    return None if chosen is None else Scorers(chosen, data)
