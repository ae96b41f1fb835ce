"""Equal samples against their definition, and through the command line: order, format, part and labels hide no copy."""

import hashlib
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import tna_onnx
from tests.api.test_choice import logits_of
from tests.conftest import Small
from tests.data.samples import open_source, spec
from tests.extraction.prepared_images import make_images, network, write_folder
from tests.support import loaded, ok, refused
from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.digest import (
    arrays_sha256,
    files_sha256,
    overlap_of,
    read_sketch,
    repeats_of,
    sketch_of,
    sketch_overlap,
    stream_sha256,
)
from tna_onnx.graph.load import load_model
from tna_onnx.pipeline.sample_checks import DigestedSamples, check_leaks

FAST = ["--method", "tna", "--search", "none", "--device", "cpu", "-q"]
LISTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=30)


def digests(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


@given(LISTS, st.lists(st.integers(0, 6), max_size=20))
def test_counts_are_those_of_the_definition(samples: list[tuple[int, int]], others: list[int]) -> None:
    values = [value for value, _ in samples]
    labels_of = {value: {label for other, label in samples if other == value} for value in values}
    repeats = repeats_of(digests(values), np.array([label for _, label in samples], np.int64))
    assert repeats.copies == sum(count - 1 for count in Counter(values).values())
    assert repeats.contradicting == sum(len(labels_of[value]) > 1 for value in values)
    assert overlap_of(digests(values), digests(others)).shared == sum(value in others for value in values)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_sketch_estimates_the_share(share: float) -> None:
    """64 digests: five standard errors of a share of 64 draws."""
    rng = np.random.default_rng(3)
    old = rng.integers(0, 2**64, 5000, np.uint64)
    new = rng.integers(0, 2**64, 5000, np.uint64)
    shared = int(share * 5000)
    new[:shared] = rng.permutation(old)[:shared]
    found = sketch_overlap(new, read_sketch(sketch_of(old)))
    assert abs(found.share - share) <= 5 * np.sqrt(share * (1 - share) / found.n)


def test_a_sketch_of_few_samples_tells_all() -> None:
    few = digests([5, 9, 700])
    assert sketch_overlap(digests([9, 10**9]), read_sketch(sketch_of(few))).share == 0.5
    assert len(read_sketch("no digests")) == len(read_sketch("")) == 0


def test_samples_are_told_whatever_the_format(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((6, 4), np.float32)
    labels = np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x=x, labels=labels)
    batches = [{"x": x[::-1], "labels": 1 - labels}]
    first = open_source(tmp_path / "a.npz", [spec()], 2).sample_digests()
    assert sorted(first) == sorted(open_source(batches, [spec()], 2).sample_digests())
    assert len(set(first)) == 6


@pytest.mark.parametrize("case", ["same", "reversed", "all but one", "half", "a twentieth", "labels apart"])
def test_held_out_data_that_were_calibrated_on_are_refused(small: Small, tmp_path: Path, case: str) -> None:
    x, labels = loaded(small.calib).values()
    other = loaded(small.test)
    parts = {
        "same": (x, labels),
        "reversed": (x[::-1], labels[::-1]),
        "all but one": (x[1:], labels[1:]),
        "half": (np.concatenate([other["x"], x]), np.concatenate([other["labels"], labels])),
        "a twentieth": (np.concatenate([other["x"], x[:80]]), np.concatenate([other["labels"], labels[:80]])),
        "labels apart": (x, (labels + 1) % 5),
    }
    held_x, held_labels = parts[case]
    np.savez(tmp_path / "held.npz", x=held_x, **({} if case == "labels apart" else {"labels": held_labels}))
    words = ["calibrate", small.model, "--calib", small.calib, "--eval", tmp_path / "held.npz", *FAST]
    words += ["-o", tmp_path / "o.onnx"]
    if case == "labels apart":
        np.save(tmp_path / "labels.npy", held_labels)
        words += ["--eval-labels", tmp_path / "labels.npy"]
    refused(4, "are calibration samples too, so they cannot judge the result; remove them", *words)
    assert not (tmp_path / "o.onnx").exists()
    if case == "half":
        ok(*words, "--limit", "overlap=60")


def test_the_same_pixels_in_other_files_are_refused(tmp_path: Path) -> None:
    """Without loss, features are equal; the bytes of the files are not."""
    onnx.save(network(), tmp_path / "model.onnx")
    images, labels = make_images(200)
    calib = write_folder(tmp_path / "calib", images, labels)
    for path in calib.rglob("*.png"):
        copy = tmp_path / "held" / path.relative_to(calib).with_suffix(".bmp")
        copy.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).save(copy)
    words = ["calibrate", tmp_path / "model.onnx", "--calib", calib, "--scale", "0.00392157", *FAST]
    refused(4, "200 of 200 samples", *words, "--eval", tmp_path / "held", "-o", tmp_path / "o.onnx")


def test_what_is_equal_is_said(small: Small, tmp_path: Path) -> None:
    x, labels = loaded(small.calib).values()
    other = loaded(small.test)
    twice = np.concatenate([x, x[:30]])
    np.savez(tmp_path / "twice.npz", x=twice, labels=np.concatenate([labels, labels[:20], (labels[20:30] + 1) % 5]))
    np.savez(tmp_path / "held.npz", x=np.concatenate([other["x"], x[:5]]), labels=np.r_[other["labels"], labels[:5]])
    words = ["calibrate", small.model, "--calib", tmp_path / "twice.npz", *FAST, "-o", tmp_path / "o.onnx"]
    words += ["--json", tmp_path / "r.json"]
    ok(*words)
    notes = "\n".join(json.loads((tmp_path / "r.json").read_text())["notes"])
    assert "30 samples (1.96 %) are copies of others" in notes
    assert "copies share a fold, and count as one in intervals" in notes
    assert "20 samples have an equal one with another label" in notes
    ok(*words, "--eval", tmp_path / "held.npz")
    notes = "\n".join(json.loads((tmp_path / "r.json").read_text())["notes"])
    assert "5 of 1,505 samples (0.33 %) are calibration samples too" in notes


@pytest.mark.parametrize("copied", [0, 30])
def test_a_promise_counts_copies_and_a_note_says_so(small: Small, tmp_path: Path, copied: int) -> None:
    x, labels = loaded(small.calib).values()
    np.savez(tmp_path / "calib.npz", x=np.concatenate([x, x[:copied]]), labels=np.r_[labels, labels[:copied]])
    result = tna_onnx.guard(small.model, tmp_path / "calib.npz", output=tmp_path / "o.onnx")
    assert any("promise counts each copy" in note for note in result.notes) == (copied > 0)


def test_data_in_another_form_cannot_be_compared_and_a_note_says_so(small: Small, tmp_path: Path) -> None:
    """Logits of the calibration data as held-out data would pass for other samples."""
    x, labels = loaded(small.calib).values()
    np.savez(tmp_path / "calib.npz", logits=logits_of(small.model, x[::-1]), labels=labels[::-1])
    words = ["--search", "none", "--map", "ts", "-o", tmp_path / "o.onnx", "--json", tmp_path / "r.json"]
    ok("calibrate", small.model, "--calib", tmp_path / "calib.npz", *words)
    calib = DigestedSamples(open_source(small.calib, [spec("x", (None, 8))], 5), "values of the model's inputs")
    (note,) = check_leaks(load_model(tmp_path / "o.onnx"), [calib], DEFAULT_LIMITS)
    assert note.endswith("it tells them apart by logits, and these by values of the model's inputs")
    held = replace(calib, form="logits")
    (note,) = check_leaks(load_model(small.model), [calib, held], DEFAULT_LIMITS)
    assert "these are recognised by logits, calibration samples by values of the model's inputs" in note


def test_data_that_a_model_was_recalibrated_on_are_known_in_part_and_in_any_order(small: Small, tmp_path: Path) -> None:
    x, labels = loaded(small.calib).values()
    words = [small.model, "--calib", small.calib, *FAST, "--map", "ts", "-o", tmp_path / "o.onnx"]
    ok("calibrate", *words)
    np.savez(tmp_path / "part.npz", x=x[700::-1], labels=labels[700::-1])
    for flags in (["--calib", tmp_path / "part.npz"], ["--calib", small.test, "--eval", tmp_path / "part.npz"]):
        words = ["calibrate", tmp_path / "o.onnx", *flags, *FAST, "--map", "ts", "-o", tmp_path / "b.onnx"]
        refused(4, "was recalibrated on these data", *words)
    ok("calibrate", tmp_path / "o.onnx", "--calib", small.test, *FAST, "--map", "ts", "-o", tmp_path / "b.onnx")


# ---- Digests against their definitions, written out with hashlib

LABELS = np.array([1, 0, 2])
AS_BYTES = b"".join(label.to_bytes(8, "big") for label in (1, 0, 2))


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


@pytest.mark.parametrize("length", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_streams_are_read_in_pieces(length: int) -> None:
    content = bytes(length - 1) + b"x" if length else b""
    assert stream_sha256(io.BytesIO(content)) == sha256(content)


def test_files_count_by_content_order_and_labels(tmp_path: Path) -> None:
    paths = [tmp_path / "b", tmp_path / "a"]
    for path in paths:
        path.write_text(path.name)
    expected = sha256((2).to_bytes(8, "big"), sha256(b"b"), sha256(b"a"), AS_BYTES)
    assert files_sha256(paths, LABELS) == expected.hex()


def test_arrays_count_by_name_dtype_shape_and_values() -> None:
    values = np.arange(6, dtype="<f4").reshape(3, 2)
    header = b"('x', '<f4', (3, 2))"
    expected = sha256(len(header).to_bytes(8, "big"), header, values.tobytes(), AS_BYTES).hex()
    assert arrays_sha256({"x": values}, LABELS) == expected
    assert arrays_sha256({"x": np.asfortranarray(values)}, LABELS) == expected, "the order in memory does not count"
    others = [{"y": values}, {"x": values.astype("<f8")}, {"x": values.reshape(3, 1, 2)}, {"x": values + 1}]
    assert len({expected, *(arrays_sha256(other, LABELS) for other in others)}) == 5
