"""The one run of the network over each set of samples, by this process or by the workers of an engine."""

from __future__ import annotations

import functools
import logging
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tna_onnx.calibration.job import Job
from tna_onnx.calibration.leaks import Told
from tna_onnx.calibration.task import Collected
from tna_onnx.data.options import Data
from tna_onnx.engine.choice import engine_of
from tna_onnx.engine.collecting import spread_on
from tna_onnx.errors import UsageError
from tna_onnx.extraction.collect import collect_features
from tna_onnx.extraction.given import Samples, is_store
from tna_onnx.extraction.head_check import Probed
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.extraction.spreading import Spread
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.progress import Progress

__all__ = ["Network", "check_engine"]

_log = logging.getLogger("tna_onnx")


def check_engine(job: Job) -> None:
    """Refuse an engine that could not do its work, before anything is opened.

    Raises:
        UsageError: no such engine, no cache for it, or samples that workers cannot open by themselves.
    """
    engine_of(job.engine)
    # nothing is collected of a store; held-out data beside one are run here, which takes no store
    if is_store(job.calib):
        return
    for data in (job.calib, job.held_out, job.training):
        if data is not None and spread_on(job.engine, data) and job.folder is None:
            raise UsageError(f"--engine {job.engine}: workers write into a feature store; add --cache FOLDER")


@dataclass(frozen=True, eq=False)
class Network:
    """The model, ready to run over samples.

    Attributes:
        opened: the model.
        probed: its head, as the first batch showed it.
        names: of the classes, if known.
        batch_size: samples per run.
        progress: called with (stage, done, total).
        job: what was asked for.
    """

    opened: OpenModel
    probed: Probed
    names: tuple[str, ...] | None
    batch_size: int
    progress: Progress
    job: Job

    def collect(self, told: Told, samples: Samples, stage: str, data: Data, cache: Path | None) -> Collected:
        """Run the samples, once, up to the head; samples that hold logits are taken as they are.

        Args:
            told: the digests of the samples.
            samples: opened here.
            stage: what progress calls them: two data sets under one name would look like one that is read twice.
            data: what the user named.
            cache: folder of the store in which features stay; None to keep them for this run only.
        """
        _log.info("collect: %s", samples.source.describe())
        advance = functools.partial(_renamed, self.progress, stage)
        readout = samples.readout
        if isinstance(readout, Head):
            readout = self.probed.readout
        spread = None if samples.given or self.job.folder is None else spread_on(self.job.engine, data)
        if spread is not None:
            return Collected(replace(samples, readout=readout), self._spread(spread, readout, samples, advance, cache))

        turn = self.job.turn
        # an earlier turn has changed other heads of the file, not these features
        source_key = None if turn is None else turn.source_key

        def run() -> FeatureTable:
            return collect_features(
                self.opened, readout, samples.source, self.batch_size, advance, cache, samples.given, source_key
            )

        table = run() if turn is None else turn.tables.collected(readout, samples, told.digests, run)
        if samples.store is not None:
            table = replace(table, folder=samples.store)
        return Collected(replace(samples, readout=readout), table)

    def collect_beside(
        self, told: Told | None, samples: Samples | None, stage: str, data: Data | None
    ) -> Collected | None:
        """Do the same with samples that nothing is fitted on later, if there are any: no store of them stays."""
        if samples is None or data is None or told is None:
            return None
        return self.collect(told, samples, stage, data, None)

    def _spread(
        self, spread: Spread, readout: Readout, samples: Samples, advance: Progress, cache: Path | None
    ) -> FeatureTable:
        def collected(folder: Path, *, keep_logits: bool) -> FeatureTable:
            return spread.collect(
                self.opened,
                readout,
                samples.source,
                self.names,
                self.batch_size,
                advance,
                folder,
                keep_logits=keep_logits,
            )

        if cache is not None:
            return collected(cache, keep_logits=True)
        # where workers can write; its arrays are mapped, and stay until they are used no more
        with tempfile.TemporaryDirectory(
            prefix=".tna-onnx-", dir=self.job.folder, ignore_cleanup_errors=True
        ) as folder:
            return replace(collected(Path(folder), keep_logits=False), folder=None)


def _renamed(progress: Progress, stage: str, _: str, done: int, total: int) -> None:
    progress(stage, done, total)
