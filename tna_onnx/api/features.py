"""`features`: fill a feature store, so that fitting later needs neither the data nor a run of the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.api.arguments import (
    FeatureWords,
    ProgressWord,
    Unpack,
    check_targets,
    data_of,
    engine_fields_of,
    kept,
    model_options_of,
    refuse_unknown,
    shown,
)
from tna_onnx.data import Source
from tna_onnx.data.choices import BatchSize, EngineFields
from tna_onnx.data.images.recipes import preprocessing_notes
from tna_onnx.data.sources.feature_files import FeatureFolder
from tna_onnx.data.suspicion import warnings_of
from tna_onnx.engine.feature_run import Choice, open_run
from tna_onnx.errors import UsageError
from tna_onnx.extraction.batch_size import batch_size_for, batch_size_notes, check_batch_size
from tna_onnx.extraction.collect import collect_features
from tna_onnx.extraction.extractor import TableExtractor
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.extraction.opened_samples import open_samples
from tna_onnx.extraction.sessions import OpenModel, open_source
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.graph.options import ModelSource
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.scores import find_readout
from tna_onnx.progress import Progress
from tna_onnx.results.evaluation import Collection
from tna_onnx.runtime import parse_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["features"]


def features(
    model: ModelSource,
    data: Any,
    cache: str | Path | None = None,
    *,
    output: str | Path | None = None,
    device: str = "auto",
    batch_size: BatchSize = 64,
    json: str | Path | None = None,
    progress: ProgressWord = None,
    **words: Unpack[FeatureWords],
) -> Collection:
    """Run a model over labelled data up to its features, and keep these with the labels.

    Into a cache of this machine, a run that was interrupted goes on at the first chunk that is missing. Parquet files
    are for every machine, and may be written by several (`engine`). The features are the same, bit for bit.

    Args:
        model: an ONNX model as for `calibrate`.
        data: labelled data, as for `calibrate`.
        cache: folder of feature stores; made if it is missing.
        output: new folder, or URL, of Parquet files; either this or `cache`.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).
        **words: single fields by name, of `tna_onnx.Data` and `tna_onnx.ModelOptions`; and of `EngineFields`: `engine`,
            `ray_options`, `max_samples`, `stratify`.

    Raises:
        TypeError: a keyword that none of these has.
        UsageError: a path or setting that cannot be used, no room, or another process is filling the same store.
        UnsupportedModel: the model is no classifier that can be read.
        DataError: the data do not fit the model.
        CheckFailed: the accuracy is more than two standard errors below the expected one.
        DeviceError: ONNX Runtime or the device is missing.
    """
    refuse_unknown("features", words, FeatureWords)
    check_batch_size(batch_size)
    check_targets(json)
    fields = engine_fields_of(words)
    if (cache is None) == (output is None):
        raise UsageError("expected either --cache, a folder of stores on this machine, or --output, a new one of files")
    if output is not None:
        with shown(progress) as advance:
            collection = _into_files(model, data, output, fields, device, batch_size, advance, words)
        return kept(json, collection)
    assert cache is not None  # noqa: S101 - for the type checker: one of the two
    if fields != EngineFields():
        raise UsageError("--engine, --ray-option, --max-samples and --stratify need --output, a new folder of files")
    options = model_options_of(words)
    labelled = data_of(data, words)
    labelled.refuse_beside("features")
    where = parse_device(device)
    loaded = open_source(model, options)
    readout = find_readout(loaded, options.head, options.output_name, options.output_kind)
    if readout.several:  # a store does not say which rows are of one sample
        raise UsageError(f"{loaded.name}: features of several predictions a sample are not kept on disk")
    opened = OpenModel(loaded, readout, where)
    names = labelled.class_names(loaded.said_of_classes, readout.labels, readout.n_classes)
    samples = open_samples(opened, labelled, names)
    source = samples.source
    labelled = samples.data or labelled
    # a store of what is computed already would hold nothing new
    if samples.given:
        raise UsageError(f"{source.describe()}: holds computed features or logits already")

    session = opened.session
    size = batch_size_for(batch_size, loaded, session, [opened.main], source, Path(cache))
    probed = check_readout(opened, readout, session, source, size)
    # as in `calibrate`: the tail runs the collected batches as they are
    if probed.tail is not None and session.fixed_batch:
        size = session.fixed_batch
    with shown(progress) as advance:
        table = collect_features(opened, probed.readout, source, size, advance, Path(cache))
    suspicion = labelled.check(_predicted(table, probed.readout), source.labels, names, readout.n_classes)
    about_images = preprocessing_notes(source, opened.inputs, labelled.preprocessing)
    notes = (*table.resumed, *batch_size_notes(batch_size, size), *probed.notes, *warnings_of(suspicion, names))
    return kept(json, _collection(opened, table, source, (*notes, *about_images)))


def _into_files(
    model: ModelSource,
    data: Any,
    output: str | Path,
    fields: EngineFields,
    device: str,
    batch_size: BatchSize,
    advance: Progress,
    words: FeatureWords,
) -> Collection:
    """Compute features here or by Ray Data, and write them as Parquet files."""
    if not isinstance(batch_size, int):
        raise UsageError("--batch-size auto is for --cache; give a number")
    ray = fields.engine.partition(":")[0] == "ray"
    if not ray and (fields.engine != "local" or fields.ray_options):
        raise UsageError(
            f"engine '{fields.engine}' is not known, or takes no --ray-option; expected local, ray[:ADDRESS]"
        )
    ray_options = dict(fields.ray_options or {})
    options = model_options_of(words)
    labelled = data_of(data, words)
    labelled.refuse_beside("features")
    loaded = open_source(model, options)
    readout = find_readout(loaded, options.head, options.output_name, options.output_kind)
    opened = OpenModel(loaded, readout, parse_device("cpu" if ray else device))
    names = labelled.class_names(loaded.said_of_classes, readout.labels, readout.n_classes)
    choice = Choice(fields.max_samples, fields.stratify)
    run = open_run(opened, model, options, labelled, names, choice, device=device, batch_size=batch_size, apart=ray)
    writer = run.check()
    if ray:
        from tna_onnx.engine.ray_data import check_ray, features_by_ray, ray_address  # noqa: PLC0415 - optional

        address = check_ray(ray_address(fields.engine), ray_options)
        folder = FeatureFolder(output)
        extractor = TableExtractor(run.extractor, writer)
        advance("features on Ray", 0, max(1, sum(map(len, run.slices))))
        features_by_ray(run.slices, extractor, folder, address, ray_options)
        provider = f"Ray ({address})"
    else:
        folder = FeatureFolder(output)
        run.here(folder, writer, advance)
        provider = opened.session.provider
    kind, count, width, dtype = folder.finish()
    return Collection(
        model=loaded.name,
        model_sha256=loaded.sha256,
        data=run.title,
        head=readout.node if kind == "features" and isinstance(readout, Head) else "",
        tensor=writer["tensor"],
        shape=(count, width),
        dtype=dtype.name,
        folder=str(output),
        notes=(),
        preprocessing=run.recipe,
        provider=provider,
    )


def _collection(opened: OpenModel, table: FeatureTable, source: Source, notes: tuple[str, ...]) -> Collection:
    readout = opened.readout
    head, tensor = "", readout.logits
    if isinstance(readout, Head):
        head, tensor = readout.node, readout.features
    return Collection(
        model=opened.model.name,
        model_sha256=opened.model.sha256,
        data=source.describe(),
        head=head,
        tensor=tensor,
        shape=table.features.shape,
        dtype=table.features.dtype.name,
        folder=str(table.folder),
        notes=notes,
        preprocessing=source.recipe(),
        provider=opened.session.provider,
    )


def _predicted(table: FeatureTable, readout: Readout) -> NDArray[np.int64]:
    """Return the predicted classes (N,), or labels (N, C).

    Without a head the rows are class logits, whatever the output holds.
    """
    if table.logits is None:
        return readout.chosen(table.features)
    return readout.predicted(table.logits)
