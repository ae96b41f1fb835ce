"""`features -o`: one set of features for every form of the data, and samples chosen before the network runs."""

import json
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.features_data import MODEL, N, by_key, rows, with_nan, write_files, write_images
from tests.support import refused, with_options
from tna_onnx import Limits, Recipe
from tna_onnx.api.features import features
from tna_onnx.data.options import Request
from tna_onnx.data.sources.feature_files import open_feature_files
from tna_onnx.data.sources.slices import chosen_rows
from tna_onnx.errors import DataError, UsageError
from tna_onnx.runtime import Session

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def digest(place: str | Path) -> str:
    files = open_feature_files(place, Request(inputs=[], n_classes=10))
    assert files is not None
    return files.source.digest()


@pytest.mark.slow
def test_one_digest_for_every_form_of_the_data(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    with np.load(MODEL.parent / "calib.npz") as file:
        np.savez(tmp_path / "a.npz", image=file["image"][:N], labels=file["labels"][:N])
    write_files(tmp_path / "one", 1)
    write_files(tmp_path / "many", 37)
    memory = fsspec.filesystem("memory")
    memory.put(f"{tmp_path}/many/", "/bucket/many/", recursive=True)
    forms = {
        "npz": tmp_path / "a.npz",
        "one": tmp_path / "one",
        "37": tmp_path / "many",
        "url": "memory://bucket/many/",
    }
    try:
        made = {
            name: features(MODEL, data, output=tmp_path / f"f-{name}", device="cpu") for name, data in forms.items()
        }
        features(MODEL, tmp_path / "one", output="memory://bucket/features", device="cpu")
        digests = {digest(tmp_path / f"f-{name}") for name in forms} | {digest("memory://bucket/features/")}
    finally:
        memory.rm("/bucket", recursive=True)
    assert len(digests) == 1
    assert {collection.shape for collection in made.values()} == {(N, 256)}
    assert by_key(tmp_path / "f-one") == by_key(tmp_path / "f-37")


def test_class_names_that_the_data_set_has_decide_what_its_labels_number(tmp_path: Path) -> None:
    """As `datasets` stores them; taken as the model's own numbers, every label would be wrong without a word."""
    order = np.random.default_rng(3).permutation(10)
    table = rows()
    labels = table["label"].to_numpy()
    names = [f"digit {k}" for k in range(10)]
    info = {"info": {"features": {"label": {"names": [names[k] for k in order], "_type": "ClassLabel"}}}}

    def write(name: str, numbers: Any) -> Path:
        named = table.set_column(1, "label", pa.array(numbers))
        pq.write_table(named.replace_schema_metadata({"huggingface": json.dumps(info)}), tmp_path / name)
        return tmp_path / name

    numbers = np.argsort(order)[labels]
    features(MODEL, write("set.parquet", numbers), output=tmp_path / "f", classes=names, device="cpu")
    assert {key: label for key, (label, _) in by_key(tmp_path / "f").items()} == {
        f"k{row}": names[label] for row, label in enumerate(labels)
    }
    without = write("without.parquet", [-1, *labels[1:]])
    with pytest.raises(DataError, match=r"goes from -1 to 9; remove samples without a label"):
        features(MODEL, without, output=tmp_path / "g", classes=names, device="cpu")


def test_images_in_folders_and_behind_a_url(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("PIL")
    write_images(tmp_path / "images")
    memory = fsspec.filesystem("memory")
    memory.put(f"{tmp_path}/images/", "/bucket/images/", recursive=True)
    words: dict[str, Any] = {"device": "cpu", "preprocessing": Recipe(color="L", scale=1 / 255)}
    try:
        with_options(features, MODEL, tmp_path / "images", output=tmp_path / "a", **words)
        with_options(features, MODEL, "memory://bucket/images/", output=tmp_path / "b", **words)
    finally:
        memory.rm("/bucket", recursive=True)
    assert by_key(tmp_path / "a") == by_key(tmp_path / "b")
    assert {key.split("/")[0]: label for key, (label, _) in by_key(tmp_path / "a").items()} == {
        str(label): label for label in range(10)
    }


@pytest.mark.parametrize("name", ["weight", "label", "key"])
def test_what_the_model_reads_may_have_the_name_of_a_weight_a_label_or_a_key(tmp_path: Path, name: str) -> None:
    weights = np.linspace(0.5, 2, N)
    for place, image in (("a", "image"), ("b", name)):
        table = rows().select(["image", "label"]).rename_columns([image, "digit"])
        (tmp_path / place).mkdir()
        pq.write_table(table.append_column("w", pa.array(weights)), tmp_path / place / "0.parquet")
        words: dict[str, Any] = {"columns": [image], "label_column": "digit", "weight_column": "w"}
        with_options(features, MODEL, tmp_path / place, output=tmp_path / f"f-{place}", device="cpu", **words)
    assert by_key(tmp_path / "f-a") == by_key(tmp_path / "f-b")


def test_columns_read_for_something_else_are_no_labels(tmp_path: Path) -> None:
    """As in calibrate: a column of groups, or one that fills the input, may be called as labels are."""
    table = rows()
    sites = [f"site {row // 2}" for row in range(N)]
    for name, columns, words in (
        ("a", ["image", "target", "key", "class"], {"group_column": "class"}),
        ("b", ["y", "target", "key"], {"columns": ["y"]}),
    ):
        named = table.append_column("class", [sites]) if name == "a" else table
        pq.write_table(named.rename_columns(columns), tmp_path / f"{name}.parquet")
        with_options(features, MODEL, tmp_path / f"{name}.parquet", output=tmp_path / name, device="cpu", **words)
        assert {key: label for key, (label, _) in by_key(tmp_path / name).items()} == dict(
            zip(table["key"].to_pylist(), table["label"].to_pylist(), strict=True)
        )


def test_tensors_with_permuted_axes_are_refused_as_they_are_elsewhere(tmp_path: Path) -> None:
    image = rows()["image"].combine_chunks()
    kind = pa.fixed_shape_tensor(pa.float32(), image.type.shape, permutation=[0, 2, 1])
    table = pa.table({"image": pa.ExtensionArray.from_storage(kind, image.storage), "label": rows()["label"]})
    pq.write_table(table, tmp_path / "turned.parquet")
    with pytest.raises(DataError, match="permuted axes"):
        features(MODEL, tmp_path / "turned.parquet", output=tmp_path / "f", device="cpu")


def test_limits_of_images_in_tables_are_those_of_the_user(tmp_path: Path) -> None:
    files = sorted(write_images(tmp_path / "images").glob("*/*.png"))
    cells = {"image": [file.read_bytes() for file in files], "label": [int(file.parent.name) for file in files]}
    pq.write_table(pa.table(cells), tmp_path / "images.parquet")
    words: dict[str, Any] = {"device": "cpu", "preprocessing": Recipe(color="L", scale=1 / 255)}
    with_options(features, MODEL, tmp_path / "images.parquet", output=tmp_path / "f", **words)
    words["limits"] = Limits(image_pixels=255)
    with pytest.raises(DataError, match="28 x 28 pixels, more than 255"):
        with_options(features, MODEL, tmp_path / "images.parquet", output=tmp_path / "g", **words)


def test_samples_are_chosen_before_the_network_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, seen = Session._compute, []

    def counted(self: Session, outputs: object, feeds: dict[str, np.ndarray]) -> object:
        seen.append(len(next(iter(feeds.values()))))
        return compute(self, outputs, feeds)

    monkeypatch.setattr(Session, "_compute", counted)
    everything = write_files(tmp_path / "many", 4)
    features(MODEL, everything, output=tmp_path / "f", device="cpu", max_samples=100, stratify=True)
    assert sum(seen) < N
    chosen = by_key(tmp_path / "f")
    shares = Counter(label for label, _ in chosen.values())
    labels = Counter(rows()["label"].to_pylist())
    assert all(abs(shares[label] - count * 100 / N) <= 0.5 for label, count in labels.items())
    features(MODEL, everything, output=tmp_path / "all", device="cpu")
    assert chosen.items() <= by_key(tmp_path / "all").items()


def test_one_network_at_a_time_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, live, most = Session.__init__, weakref.WeakSet[Session](), []

    def counted(self: Session, *words: Any, **options: Any) -> None:
        live.add(self)
        most.append(len(live))
        create(self, *words, **options)

    monkeypatch.setattr(Session, "__init__", counted)
    features(MODEL, write_files(tmp_path / "one", 1), output=tmp_path / "f", device="cpu")
    assert max(most) == 1


def test_rows_that_are_chosen() -> None:
    assert chosen_rows(10, None, 20).tolist() == list(range(10))
    plain = chosen_rows(1000, None, 100)
    assert len(set(plain.tolist())) == 100
    labels = np.repeat([0, 1, 2], [900, 99, 1])
    assert np.bincount(labels[chosen_rows(1000, labels, 100)]).tolist() == [90, 10, 1]
    assert not np.array_equal(chosen_rows(1000, labels, 100, seed=1), chosen_rows(1000, labels, 100))


def test_a_run_that_fails_leaves_no_data(tmp_path: Path) -> None:
    with_nan(rows(), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="NaN"):
        features(MODEL, tmp_path / "t.parquet", output=tmp_path / "f", device="cpu")
    assert list((tmp_path / "f").iterdir()) == []
    pq.write_table(rows(), tmp_path / "t.parquet")  # the same command again
    assert features(MODEL, tmp_path / "t.parquet", output=tmp_path / "f", device="cpu").shape[0] == N


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "either --cache"),
        (("-o", "f", "--cache", "c"), "either --cache"),
        (("--cache", "c", "--max-samples", "5"), "need --output"),
        (("-o", "f", "--engine", "spark"), "expected local, ray"),
        (("-o", "f", "--stratify"), "needs --max-samples"),
        (("-o", "f", "--ray-option", "num_gpus=1"), "takes no --ray-option"),
        (("-o", "f", "--engine", "ray", "--ray-option", "gpus"), "NAME=VALUE"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    refused(2, message, "features", MODEL, MODEL.parent / "calib.npz", *flags)


def test_features_are_no_data_for_features(tmp_path: Path) -> None:
    write_files(tmp_path / "one", 1)
    features(MODEL, tmp_path / "one", output=tmp_path / "f", device="cpu")
    with pytest.raises(UsageError, match="computed features"):
        features(MODEL, tmp_path / "f", output=tmp_path / "g", device="cpu")
