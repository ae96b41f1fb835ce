"""What a user would write instead: Pillow, ONNX Runtime and scikit-learn's temperature, over two folders of images.

Reads a folder for each class, fits a temperature on the first data and prints metrics of both on the second.

    python benchmarks/by_hand.py MODEL.onnx CALIB HELDOUT
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from common import arguments
from PIL import Image
from scipy.special import log_softmax
from sklearn.calibration import _TemperatureScaling

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


def read(path: Path) -> np.ndarray:
    """Return an image as ImageNet's networks take it, (3, height, width)."""
    pixels = np.asarray(Image.open(path).convert("RGB"), np.float32) / 255
    return ((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)


def logits_of(session: onnxruntime.InferenceSession, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Run the network over all images; return logits (N, C) and labels (N,)."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(path, k) for k, one in enumerate(classes) for path in sorted(one.iterdir())]
    name = session.get_inputs()[0].name
    logits = []
    for start in range(0, len(files), 64):
        batch = np.stack([read(path) for path, _ in files[start : start + 64]])
        logits.append(session.run(None, {name: batch})[0])
    return np.concatenate(logits), np.array([k for _, k in files])


def report(name: str, logits: np.ndarray, labels: np.ndarray) -> None:
    """Print accuracy, ECE of 15 bins and NLL."""
    log_p = log_softmax(logits, axis=1)
    confidence = np.exp(log_p.max(axis=1))
    hit = log_p.argmax(axis=1) == labels
    gap = np.zeros(15)
    np.add.at(gap, np.minimum((confidence * 15).astype(int), 14), hit - confidence)
    nll = -np.mean(log_p[np.arange(len(labels)), labels])
    print(f"{name}: accuracy {hit.mean():.4f}, ECE {np.abs(gap).sum() / len(labels):.4f}, NLL {nll:.4f}")


def main() -> None:
    """Calibrate by hand."""
    parser = arguments(__doc__)
    parser.add_argument("model")
    parser.add_argument("calib", type=Path)
    parser.add_argument("held_out", type=Path)
    a = parser.parse_args()
    session = onnxruntime.InferenceSession(a.model, providers=["CPUExecutionProvider"])
    fitted = _TemperatureScaling().fit(*logits_of(session, a.calib))
    logits, labels = logits_of(session, a.held_out)
    report("before", logits, labels)
    report("after", logits * float(fitted.beta_), labels)


if __name__ == "__main__":
    main()
