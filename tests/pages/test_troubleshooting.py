"""docs/troubleshooting.md: the commands below end with the messages and exit codes that its tables name."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.builders import nodes_of, small_model
from tests.conftest import ROOT
from tests.support import cli, loaded

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
TABLES = {int(code): part for part in PAGE.split("\n## ") for code in re.findall(r"\(exit code (\d)\)", part)}

DEMO = str(ROOT / "models/digits/model.onnx")
CALIB = str(ROOT / "models/digits/calib.npz")

# Words of the message -> its exit code, and the command.
MESSAGES: dict[str, tuple[int, str]] = {
    "held-out data are named by --eval": (2, "calibrate DEMO CALIB few.npz"),
    "is not one of 'auto'": (2, "calibrate DEMO CALIB --map tss"),
    "output is the input model": (2, "calibrate table.onnx names.csv -o table.onnx"),
    "only models of the same classes can be compared": (2, "compare DEMO table.onnx --data few.npz"),
    "not an ONNX file, or a truncated one": (3, "evaluate names.csv CALIB"),
    "is missing in": (3, "inspect split.onnx"),
    "holds class labels, not scores": (3, "calibrate argmax.onnx whole.csv"),
    "heads found": (3, "calibrate two.onnx whole.csv"),
    "map platt is for two classes": (3, "calibrate DEMO CALIB --map platt"),
    "no array 'labels'": (4, "calibrate DEMO unlabelled.npz"),
    "no column is named 'label'": (4, "calibrate table.onnx tier.csv"),
    "no array for the model's input": (4, "calibrate DEMO renamed.npz"),
    "expected shape": (4, "calibrate DEMO flat.npz"),
    "expected dtype float32": (4, "calibrate DEMO pixels.npz"),
    "labels must lie in 0 to": (4, "calibrate DEMO from-one.npz"),
    "expected integers": (4, "calibrate DEMO halves.npz"),
    "so their order is unknown": (4, "calibrate table.onnx names.csv"),
    "columns of numbers, the table has": (4, "calibrate table.onnx narrow.csv"),
    "expected a finite number": (4, "calibrate table.onnx holes.csv"),
    "must be finite": (4, "calibrate DEMO nan.npz"),
    "with the classes in another order": (4, "calibrate DEMO shuffled.npz --map ts"),
    "near chance": (4, "calibrate DEMO noise.npz --map ts"),
    "every calibration sample is classified right": (4, "calibrate table.onnx whole.csv --map ts"),
    "are calibration samples too": (4, "calibrate DEMO some.npz --eval some.npz --map ts"),
    "was recalibrated on these data": (4, "calibrate new.onnx some.npz --map ts"),
    "fewer than the 15 bins": (4, "calibrate DEMO few.npz"),
    "turns text into tokens": (4, "evaluate text.onnx text.csv"),
    "sets with a coverage of": (4, "guard DEMO some.npz --add set --coverage 99.99 -o guarded.onnx"),
    "missed: ECE is": (1, "evaluate DEMO some.npz --max-ece 0.1"),
    "expected 99.00 %": (1, "evaluate DEMO some.npz --expect-accuracy 99"),
    "it was made of another model": (1, "verify table.onnx new.onnx"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with small models and data, each wrong in its own way."""
    folder = tmp_path_factory.mktemp("trouble")
    rng = np.random.default_rng(0)
    x, y = (array[:1000] for array in loaded(CALIB).values())
    images = {
        "some": (x, y), "few": (x[:5], y[:5]), "flat": (x[:, 0], y), "from-one": (x, y + 1), "halves": (x, y + 0.5),
        "pixels": ((255 * x).astype(np.uint8), y), "nan": (np.where(np.arange(28) == 3, np.nan, x).astype(x.dtype), y),
        "shuffled": (x, (y + 1) % 10), "noise": (rng.standard_normal(x.shape).astype(x.dtype), y),
    }  # fmt: skip
    for name, (samples, labels) in images.items():
        np.savez(folder / f"{name}.npz", image=samples, labels=labels)
    np.savez(folder / "unlabelled.npz", image=x)
    np.savez(folder / "renamed.npz", pictures=x, masks=x, labels=y)
    write_models(folder, rng.standard_normal((4, 3)).astype(np.float32))
    assert cli("calibrate", DEMO, folder / "some.npz", "--map", "ts", "-o", folder / "new.onnx").exit_code == 0
    return folder


def write_models(folder: Path, weight: np.ndarray) -> None:
    """Write a linear model with its faults, and tables for it."""
    layer, x, z = "MatMul X weight > z name=head", {"X": ["N", 4]}, {"z": ["N", 3]}
    second, chosen = "MatMul X other > z2 name=second", "ArgMax z > class axis=1 keepdims=0"
    tokens = "Gather table input_ids > e; ReduceMean e > X axes=[1] keepdims=0"
    tensors = {"weight": weight, "other": weight + 1, "table": np.zeros((9, 4), np.float32)}
    models: dict[str, tuple[str, Any, Any, tuple[str, ...]]] = {
        "table": (layer, x, z, ("weight",)),
        "two": (f"{layer}; {second}", x, {**z, "z2": ["N", 3]}, ("weight", "other")),
        "argmax": (f"{layer}; {chosen}", x, {"class": (["N"], np.int64)}, ("weight",)),
        "text": (f"{tokens}; {layer}", {"input_ids": (["N", "T"], np.int64)}, z, ("weight", "table")),
    }
    for name, (nodes, inputs, outputs, used) in models.items():
        model = small_model(nodes_of(nodes), inputs, outputs, {each: tensors[each] for each in used})
        onnx.save(model, folder / f"{name}.onnx")
    whole = onnx.load(folder / "table.onnx")
    onnx.save(whole, folder / "split.onnx", save_as_external_data=True, location="split.data", size_threshold=0)
    (folder / "split.data").unlink()
    samples = np.random.default_rng(1).standard_normal((60, 4)).astype(np.float32)
    labels = np.argmax(samples @ weight, axis=1)
    rows = [",".join(map(str, sample)) for sample in samples.tolist()]
    tables = {
        "whole": ("a,b,c,d,label", rows, labels), "tier": ("a,b,c,d,tier", rows, labels),
        "names": ("a,b,c,d,label", rows, np.array(["x", "y"])[labels % 2]),
        "narrow": ("a,b,c,label", [row.rpartition(",")[0] for row in rows], labels),
        "holes": ("a,b,c,d,label", ["," + rows[0].partition(",")[2], *rows[1:]], labels),
        "text": ("text,label", ["good"] * 60, labels),
    }  # fmt: skip
    for name, (head, lines, of) in tables.items():
        cells = [f"{line},{label}" for line, label in zip(lines, of.tolist(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([head, *cells]))


@pytest.mark.parametrize("message", MESSAGES)
def test_message(message: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    code, line = MESSAGES[message]
    result = cli(*line.replace("DEMO", DEMO).replace("CALIB", CALIB).split())
    assert result.exit_code == code, result.output
    assert message in " ".join(result.output.split()), result.output
    assert f"| `{message}` |" in TABLES[code]
