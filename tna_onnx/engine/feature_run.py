"""Features of data into files: what `features -o` does, on this machine or by Ray Data.

1. The data are listed once, and samples are chosen before the network runs.
2. The first samples run here: what is wrong with data or model is said before anything is started.
3. Slices of the data go through one function, `TableExtractor`, here or in the actors of Ray: the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data import Recipe, open_precomputed
from tna_onnx.data.files import is_url, local_path
from tna_onnx.data.labelfile import find_label_column
from tna_onnx.data.options import Data
from tna_onnx.data.request import Request
from tna_onnx.data.sources.feature_files import FeatureFolder, TableFiles, find_table_files, row_groups
from tna_onnx.data.sources.images import ImageSource
from tna_onnx.data.sources.slices import (
    Slice,
    chosen_rows,
    open_bucket,
    source_slices,
    table_labels,
    table_slices,
)
from tna_onnx.data.sources.tables import table_columns
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.extractor import FeatureExtractor, TableExtractor
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.progress import Progress

__all__ = ["Choice", "FeatureRun", "open_run"]

_STAGE = "features"


@dataclass(frozen=True)
class Choice:
    """Which samples are taken.

    Attributes:
        size: how many; None for all.
        stratify: whether each class keeps its share.
    """

    size: int | None = None
    stratify: bool = False


@dataclass(frozen=True, eq=False)
class FeatureRun:
    """Slices of data, and the model that they go through.

    Attributes:
        slices: of the data.
        extractor: the model.
        title: what the data are, in one line.
        recipe: what is done to images; None for values that are used as they are.
    """

    slices: Sequence[Slice]
    extractor: FeatureExtractor
    title: str
    recipe: dict[str, object] | None

    def check(self) -> dict[str, Any]:
        """Run the first samples on this machine's CPU, and return what the files will say of the features.

        Raises:
            TnaError: they do not run.
        """
        writer = self.extractor.describe()
        first = next((table for part in self.slices for table in part.tables()), None)
        if first is None:
            raise DataError(f"{self.title}: no samples; give data with samples")
        here = FeatureExtractor.__new__(FeatureExtractor)
        here.__dict__.update(self.extractor.__getstate__(), device="cpu")
        TableExtractor(here, writer)(first.slice(0, self.extractor.batch_size))
        return writer

    def here(self, folder: FeatureFolder, writer: dict[str, Any], progress: Progress) -> None:
        """Compute the features in this process, and write them.

        Raises:
            TnaError: of reading, or of the model.
        """
        folder.write(self._tables(TableExtractor(self.extractor, writer), progress))

    def _tables(self, extractor: TableExtractor, progress: Progress) -> Iterator[Any]:
        total = sum(map(len, self.slices))
        done = 0
        for part in self.slices:
            for table in part.tables():
                yield extractor(table)
                done += len(table)
                progress(_STAGE, done, max(total, done))


def open_run(
    opened: OpenModel,
    model: ModelSource,
    options: ModelOptions,
    data: Data,
    names: tuple[str, ...] | None,
    choice: Choice,
    *,
    device: str,
    batch_size: int,
    apart: bool,
) -> FeatureRun:
    """List data, choose samples, and cut them into slices.

    Args:
        opened: the model.
        model: as the user gave it.
        options: on the model.
        data: the samples.
        names: of the classes, if known.
        choice: which samples.
        device: where the network runs.
        batch_size: samples per run of it.
        apart: whether slices are read by other processes, perhaps on other machines.

    Raises:
        UsageError: an argument that cannot be used.
        DataError: the data cannot be read, or do not fit the model.
    """
    readout = opened.readout
    if readout.several or readout.multi_label:
        raise UsageError(f"{opened.model.name}: several predictions a sample are kept with --cache, not --output")
    if data.expect_accuracy is not None:
        raise UsageError("--expect-accuracy needs logits, which are not computed here; give it to `calibrate`")
    request = Request(
        opened.inputs,
        readout.n_classes,
        data.recipe(),
        class_names=names,
        label_column=data.label_column,
        limits=data.limits,
        columns=tuple(data.columns),
    )
    files = _table_files(data)
    if files is not None:
        return _of_tables(opened, model, options, data, request, files, choice, device, batch_size)
    source, recipe = _source(opened, data, request, names)
    if apart and not (isinstance(source, ImageSource) and source_slices(source, np.arange(1))[0].source is not source):
        raise UsageError(
            f"{source.describe()}: --engine ray reads Parquet and Arrow files, and images in folders or manifests; "
            "write the data as one of these, or leave --engine out"
        )
    count = len(source)
    rows = chosen_rows(count, source.labels if choice.stratify else None, choice.size or count)
    slices = source_slices(source, rows)
    extractor = _extractor(opened, model, options, device, batch_size, tuple(spec.name for spec in opened.inputs), None)
    return FeatureRun(slices, extractor, source.describe(), recipe)


def _source(
    opened: OpenModel, data: Data, request: Request, names: tuple[str, ...] | None
) -> tuple[Any, dict[str, object] | None]:
    """Return the samples with their preprocessing settled."""
    place = data.samples
    if isinstance(place, str) and is_url(local_path(place)) and request.takes_images and place.endswith("/"):
        source: Any = open_bucket(place, request)
    else:
        if data.format in (None, "npz", "npy") and open_precomputed(
            place, opened.inputs, request.n_classes, labels=data.labels, class_names=names, limits=data.limits
        ):
            raise UsageError(f"{place}: holds computed features or logits already")
        source = data.open(opened.inputs, request.n_classes, names, model_file=opened.model.path)
    _, source = opened.preparation.settle(data, source)
    return source, source.recipe()


def _table_files(data: Data) -> TableFiles | None:
    """Return table files that are read as they are, row by row; None for other data."""
    if data.format not in (None, "table") or data.labels is not None or data.tokenizer is not None or data.skip_bad:
        return None
    if not isinstance(data.samples, (str, Path)):
        return None
    place = local_path(str(data.samples))
    path = Path(place)
    if not is_url(place) and path.is_dir() and (path / "state.json").exists():
        return None
    return find_table_files(place)


def _of_tables(
    opened: OpenModel,
    model: ModelSource,
    options: ModelOptions,
    data: Data,
    request: Request,
    files: TableFiles,
    choice: Choice,
    device: str,
    batch_size: int,
) -> FeatureRun:
    where = str(data.samples)
    known = {"features", "logits"} & set(files.schema.names)
    if known and not known & {spec.name for spec in opened.inputs}:
        raise UsageError(f"{where}: holds computed features or logits already")
    label = find_label_column([field.name for field in files.schema], data.label_column, where)
    columns, image = table_columns(files.schema, request, label, where)
    recipe: Recipe | None = None
    if image:
        stated = opened.preparation.stated(data, opened.inputs[0])
        if stated is None:
            raise UsageError(
                f"{where}: nothing says how its images are prepared; say it with --preset, or --mean and --std"
            )
        recipe = stated
    rows = None
    if choice.size is not None:
        labels = table_labels(files, label) if choice.stratify else None
        count = sum(sum(row_groups(files, name)) for name in files.names)
        rows = chosen_rows(count, labels, choice.size)
    slices = table_slices(files, columns, label, rows)
    extractor = _extractor(opened, model, options, device, batch_size, columns, recipe)
    title = f"{len(files.names):,} table files" if len(files.names) > 1 else f"table {Path(where).name}"
    return FeatureRun(slices, extractor, title, None if recipe is None else recipe.resolve(opened.inputs[0]).as_dict())


def _extractor(
    opened: OpenModel,
    model: ModelSource,
    options: ModelOptions,
    device: str,
    batch_size: int,
    columns: tuple[str, ...],
    recipe: Recipe | None,
) -> FeatureExtractor:
    """Return what travels to other processes: with the bytes of the model, unless it is in several files."""
    if isinstance(model, (str, os.PathLike)):
        path = Path(model).absolute()
        model = path if opened.model.external_files else path.read_bytes()
    return FeatureExtractor(
        model,
        head=options.head,
        output_name=options.output_name,
        output_kind=options.output_kind,
        preprocessing=recipe,
        columns=columns,
        device=device,
        batch_size=batch_size,
    )
