"""`features`: fill a feature store, so that fitting later needs neither the data nor a run of the network.

With `-o`, slices of the data go through `TableExtractor`, here or in the actors of Ray: the same bits.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tna_onnx.api import arguments
from tna_onnx.data.foreign import optional
from tna_onnx.data.formats import request_of
from tna_onnx.data.images.known_recipes import preprocessing_notes
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Data, FeatureFields
from tna_onnx.data.sources.feature_files import FeatureFolder
from tna_onnx.data.sources.slices import (
    Slice,
    SourceSlice,
    chosen_rows,
    image_slices,
    input_column,
    plain_tables,
    table_slices,
)
from tna_onnx.data.suspicion import checked_labels, warnings_of
from tna_onnx.engine.logits import HeadLogits, Logits, StoredLogits, TailLogits
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.classifier import Classifier, OpenModel
from tna_onnx.extraction.collect import collect_features
from tna_onnx.extraction.extractor import FeatureExtractor, TableExtractor
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.extraction.opened_samples import open_samples, read_inputs
from tna_onnx.files import is_url
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.readout import Head
from tna_onnx.graph.scores import find_readout
from tna_onnx.progress import Progress
from tna_onnx.results.inspection import Collection
from tna_onnx.runtime import parse_device


@arguments.checked
def features(
    model: ModelSource,
    data: Any,
    cache: str | Path | None = None,
    *,
    output: str | Path | None = None,
    labels: Any = None,
    preset: arguments.PresetWord = None,
    classes: arguments.ClassNames = None,
    max_samples: int | None = None,
    stratify: bool = False,
    engine: str = "local",
    ray_options: Mapping[str, Any] | None = None,
    model_options: ModelOptions | None = None,
    device: str = "auto",
    batch_size: int = 64,
    json: str | Path | None = None,
    progress: arguments.ProgressWord = None,
) -> Collection:
    """Run a model over labelled data up to its features, and keep these with the labels.

    Into a cache of this machine, a run that was interrupted goes on at the first chunk that is missing. Parquet files
    are for every machine, and may be written by several (`engine`). The features are the same, bit for bit.

    Args:
        model: an ONNX model as for `calibrate`.
        data: labelled data, as for `calibrate`, or a `tna_onnx.Data`, whose groups and weights are kept as columns
            `group` and `weight`.
        cache: folder of feature stores; made if it is missing.
        output: new folder, or URL, of Parquet files; either this or `cache`.
        max_samples: samples to choose at random, before the network runs; all by default. With `output`.
        stratify: choose them class by class, so that each keeps its share.
        engine: what runs the network: `local`, `ray`, or the address of a Ray cluster. With `output`.
        ray_options: passed on to Ray Data.
        labels, preset, classes, model_options, device, batch_size, json, progress: as for `calibrate`.

    Raises:
        UsageError: a path or setting that cannot be used, no room, or another process is filling the same store.
        UnsupportedModel: the model is no classifier that can be read.
        DataError: the data do not fit the model.
        CheckFailed: the accuracy is more than two standard errors below the expected one.
        DeviceError: ONNX Runtime or the device is missing.
    """
    fields = FeatureFields(engine, ray_options or None, max_samples, stratify)
    if stratify and max_samples is None:
        raise UsageError("--stratify needs --max-samples, the number of samples to choose")
    if (cache is None) == (output is None):
        raise UsageError("expected either --cache, a folder of stores on this machine, or --output, a new one of files")
    if cache is not None and fields != FeatureFields():
        raise UsageError("--engine, --ray-option, --max-samples and --stratify need --output, a new folder of files")
    options = model_options or ModelOptions()
    reading = arguments.reading_of(None, labels=labels, preprocessing=preset, classes=classes)
    labelled = arguments.samples_of(data, reading)
    arguments.check_targets(json, in_use=[model, labelled, cache, output])
    labelled.refuse_beside("features", "by")
    if labelled.class_prior is not None:
        raise UsageError("features does not use --class-prior; add it to the command that fits on the features")
    # what runs on Ray has devices of its own
    where = parse_device("cpu" if fields.on_ray else device)
    loaded = load_model(model, options.model_limits)
    readout = find_readout(loaded, options.head, options.output_name, options.output_kind)
    opened = OpenModel(loaded, readout, where, labelled)
    with arguments.progress_callback(progress) as advance:
        if cache is not None:
            return arguments.save_json(json, _into_cache(opened, labelled, Path(cache), batch_size, advance))
        extractor = FeatureExtractor(
            _travelling(model, loaded),
            head=options.head,
            output_name=options.output_name,
            output_kind=options.output_kind,
            device=device,
            batch_size=batch_size,
        )
        extractor.model_name = loaded.name
        extractor.options = options
        return arguments.save_json(json, _into_files(opened, labelled, str(output), fields, extractor, advance))


def _travelling(model: ModelSource, loaded: Model) -> ModelSource:
    """Return a model as it travels to other processes: its bytes, unless it is in several files."""
    if not isinstance(model, (str, os.PathLike)):
        return model
    path = Path(model).absolute()
    if loaded.external_files:
        return path
    return path.read_bytes()


def _into_cache(opened: OpenModel, data: Data, cache: Path, batch_size: int, progress: Progress) -> Collection:
    """Compute features, and keep them in a store of this machine."""
    model = opened.model
    readout = opened.readout
    if readout.several:  # a store does not say which rows are of one sample
        raise UsageError(f"{model.name}: features of several predictions a sample are not kept on disk")
    samples = open_samples(opened, data)
    source = samples.source
    data = samples.data or data
    # a store of what is computed already would hold nothing new
    if samples.given:
        raise UsageError(f"{source.describe()}: holds computed features or logits already")
    size = batch_size
    probed = check_readout(opened, readout, opened.session, source, size)
    # as in `calibrate`: the tail runs the collected batches as they are
    if probed.tail is not None and opened.session.fixed_batch:
        size = opened.session.fixed_batch
    table = collect_features(opened, probed.readout, source, size, progress, cache)
    logits: Logits = StoredLogits(table)  # without a head the rows are class logits, whatever the output holds
    if probed.tail is not None:
        logits = TailLogits(table, probed.tail.logits(None), readout.n_classes)
    elif isinstance(probed.readout, Head):
        logits = HeadLogits(table, probed.readout.weight, probed.readout.bias)
    suspicion = checked_labels(data, logits.predictions(), source.labels, opened.names, readout.n_classes)
    return Collection(
        model=model.name,
        model_sha256=model.sha256,
        data=source.describe(),
        head=readout.node,
        tensor=opened.readout.main,
        shape=table.features.shape,
        dtype=table.features.dtype.name,
        folder=str(table.folder),
        notes=(
            *table.resumed,
            *probed.notes,
            *warnings_of(suspicion, opened.names),
            *preprocessing_notes(source, opened.inputs, data.preprocessing),
        ),
        preprocessing=source.recipe(),
        provider=opened.session.provider,
    )


def _into_files(
    opened: OpenModel, data: Data, output: str, fields: FeatureFields, extractor: FeatureExtractor, progress: Progress
) -> Collection:
    """Compute features here or by Ray Data, and write them as Parquet files."""
    optional("pyarrow", "tables", "writing features as Parquet (--cache DIR writes a store instead)")
    slices, title, recipe = _slices(opened, data, fields, extractor)
    writer = extractor.describe()
    provider = opened.session.provider
    opened.close()  # one network at a time is in memory
    _check_first(slices, title, extractor, writer)
    tables = TableExtractor(extractor, writer)
    total = sum(map(len, slices))
    if fields.on_ray:
        from tna_onnx.engine.ray_data import check_ray, features_by_ray

        address = check_ray(fields.engine, fields.ray_options)
        folder = FeatureFolder(output)
        progress("features on Ray", 0, max(1, total))
        features_by_ray(slices, tables, folder, address, fields.ray_options)
        provider = f"Ray ({address})"
    else:
        folder = FeatureFolder(output)
        folder.write(_computed(slices, tables, total, progress))
    kind, count, width, dtype = folder.finish()
    readout = opened.readout
    return Collection(
        model=opened.model.name,
        model_sha256=opened.model.sha256,
        data=title,
        head=readout.node if kind == "features" and isinstance(readout, Head) else "",
        tensor=writer["tensor"],
        shape=(count, width),
        dtype=dtype.name,
        folder=output,
        notes=(),
        preprocessing=recipe,
        provider=provider,
    )


def _check_first(slices: Sequence[Slice], title: str, extractor: FeatureExtractor, writer: Mapping[str, Any]) -> None:
    """Run the first samples on this machine's CPU: an error on a cluster would come late."""
    first = next((table for chunk in slices for table in chunk.tables()), None)
    if first is None:
        raise DataError(f"{title}: no samples; give data with samples")
    local = copy.copy(extractor)
    local.device = "cpu"
    TableExtractor(local, writer)(first.slice(0, local.batch_size))


def _computed(slices: Sequence[Slice], extractor: TableExtractor, total: int, progress: Progress) -> Iterator[Any]:
    """Yield the features of all slices, which are computed in this process."""
    done = 0
    for chunk in slices:
        for table in chunk.tables():
            yield extractor(table)
            done += len(table)
            progress("features", done, max(total, done))


def _slices(
    opened: Classifier, data: Data, fields: FeatureFields, extractor: FeatureExtractor
) -> tuple[Sequence[Slice], str, dict[str, object] | None]:
    """List data, choose samples, cut them into slices, and tell the extractor which columns it reads.

    Gives the slices, what the data are in one line, and what is done to images, if they are any.
    """
    output = opened.output
    if output.several or output.multi_label:
        raise UsageError(
            f"{opened.model.name}: has several predictions a sample, which neither --output nor --engine ray takes"
        )
    if data.expect_accuracy is not None:
        raise UsageError("--expect-accuracy needs all scores at once; add it to `calibrate`, or leave --engine out")
    request = request_of(data, opened.inputs, output.n_classes, opened.names, model_file=opened.model.path)
    files = plain_tables(data)
    if files is not None:
        slices, extractor.columns, has_images = table_slices(files, request, fields)
        extractor.limits = data.limits
        recipe = None
        if has_images:
            extractor.preprocessing, recipe = _stated_recipe(opened, data)
        title = f"table {Path(data.samples).name}"
        if len(files.names) > 1:
            title = f"{len(files.names):,} table files"
        return slices, title, recipe
    data, source = opened.preparation.settle(data, read_inputs(opened, data))
    extractor.columns = tuple(input_column(spec.name) for spec in opened.inputs)
    labels = None
    if fields.stratify:
        labels = source.labels
    rows = chosen_rows(len(source), labels, fields.max_samples or len(source))
    if not fields.on_ray:
        return [SourceSlice(source, rows)], source.describe(), source.recipe()
    # the copy of a URL is on this machine only
    images = image_slices(source, rows)
    if images is None or is_url(str(data.samples)):
        raise UsageError(
            f"{source.describe()}: --engine ray reads Parquet and Arrow files, and images in folders or manifests on "
            "disks that all machines reach; write the data as one of these, or leave --engine out"
        )
    return images, source.describe(), source.recipe()


def _stated_recipe(opened: Classifier, data: Data) -> tuple[Recipe, dict[str, object]]:
    """Return the preprocessing of images in tables, which has to be known, and what the report says of it."""
    stated = opened.preparation.stated(data, opened.inputs[0])
    if stated is None:
        raise UsageError(
            f"{data.samples}: the preprocessing of its images is unknown; add --preset, or --mean and --std"
        )
    return stated, stated.resolve(opened.inputs[0]).as_dict()
