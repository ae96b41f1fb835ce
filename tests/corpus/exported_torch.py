"""Models written by PyTorch's two exporters: the one that traces (legacy) and the one on torch.export (dynamo).

Every model takes one input, `x`. torch is imported when a case is built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.corpus.case import Case, Library, class_vectors, quiet

torch = Library("torch")
nn = Library("torch.nn")

Array = NDArray[Any]
CLASSES, FEATURES = 5, 16


@dataclass(frozen=True, eq=False)
class Source:
    """A model before export.

    Attributes:
        module: torch module in eval mode; `forward(x)`.
        x: example input, a torch tensor of three samples.
        weight: (C, n) class vectors as applied; None where there is no head that could be replaced.
        outputs: names of the results.
    """

    module: Any
    x: Any
    weight: Array | None
    outputs: tuple[str, ...] = ("logits",)


def network(forward: Callable[[Any, Any], Any], **parts: Any) -> Any:
    """Return a module with these parts, in eval mode; `forward` takes it and the input."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    return Net().eval()


def _array(tensor: Any) -> Array:
    value: Array = tensor.detach().numpy().copy()
    return value.reshape(value.shape[:2])


def _scores(
    after: Callable[[Any], Any] = lambda scores: scores,
    classes: int = CLASSES,
    bias: bool = True,
    dtype: str = "float32",
    outputs: tuple[str, ...] = ("logits",),
) -> Source:
    """MLP 12 -> 16 -> C, and `after` on its scores."""
    body, head = torch.nn.Linear(12, FEATURES), torch.nn.Linear(FEATURES, classes, bias=bias)
    module = network(lambda net, x: after(net.head(torch.relu(net.body(x)))), body=body, head=head)
    module, x = module.to(getattr(torch, dtype)), torch.randn(3, 12).to(getattr(torch, dtype))
    return Source(module, x, class_vectors(_array(head.weight)), outputs)


def _sigmoid_pair() -> Source:
    def pair(scores: Any) -> Any:
        p = scores.sigmoid()
        return torch.cat([1 - p, p], dim=1)

    return _scores(pair, 1, outputs=("probabilities",))


def _two_heads(as_dict: bool) -> Source:
    """Two linear layers on the same features; the truth is of the second."""
    body, first, second = (torch.nn.Linear(a, b) for a, b in ((12, FEATURES), (FEATURES, 3), (FEATURES, CLASSES)))

    def forward(net: Any, x: Any) -> Any:
        h = torch.relu(net.body(x))
        a, b = net.first(h), net.second(h)
        return {"shape": a, "colour": b} if as_dict else (a, b)

    module = network(forward, body=body, first=first, second=second)
    return Source(module, torch.randn(3, 12), _array(second.weight), ("shape", "colour"))


def _auxiliary() -> Source:
    """A deeper layer makes the main logits; an auxiliary head sits half way, as in GoogLeNet."""
    body, aux, deep, head = (
        torch.nn.Linear(a, b) for a, b in ((12, FEATURES), (FEATURES, CLASSES), (FEATURES, 24), (24, CLASSES))
    )

    def forward(net: Any, x: Any) -> Any:
        h = torch.relu(net.body(x))
        return net.head(torch.relu(net.deep(h))), net.aux(h)

    module = network(forward, body=body, aux=aux, deep=deep, head=head)
    return Source(module, torch.randn(3, 12), _array(head.weight), ("logits", "aux"))


def _with_features() -> Source:
    """The features are an output too; they come from a linear layer with a ReLU, as a head with a ReLU would."""
    body, head = torch.nn.Linear(12, FEATURES), torch.nn.Linear(FEATURES, CLASSES)

    def forward(net: Any, x: Any) -> Any:
        h = torch.relu(net.body(x))
        return net.head(h), h

    return Source(
        network(forward, body=body, head=head), torch.randn(3, 12), _array(head.weight), ("logits", "embedding")
    )


def _custom(scores: Callable[[Any, Any], Any], head: Any, weight: Any) -> Source:
    """MLP body 12 -> 16 and `scores(head, features)`; `weight` is a torch tensor."""
    body = torch.nn.Linear(12, FEATURES)
    module = network(lambda net, x: scores(net.head, torch.relu(net.body(x))), body=body, head=head)
    return Source(module, torch.randn(3, 12), _array(weight))


def _cosine() -> Source:
    from torch.nn.functional import linear, normalize

    head = torch.nn.Linear(FEATURES, CLASSES, bias=False)
    return _custom(
        lambda net, h: 16.0 * linear(normalize(h, dim=1), normalize(net.weight, dim=1)),
        head,
        normalize(head.weight, dim=1),
    )


def _weight_norm() -> Source:
    head = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(FEATURES, CLASSES))
    with torch.no_grad():
        head.parametrizations.weight.original0.mul_(torch.rand(CLASSES, 1) + 0.5)
    return _custom(lambda net, h: net(h), head, head.weight)


def _spectral_norm() -> Source:
    head = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(FEATURES, CLASSES))
    head.eval()
    return _custom(lambda net, h: net(h), head, head.weight)


def _batch_norm() -> Source:
    """A BatchNorm of the scores multiplies each class vector by a constant."""
    linear, norm = torch.nn.Linear(FEATURES, CLASSES), torch.nn.BatchNorm1d(CLASSES)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(CLASSES) + 0.5)
        norm.running_var.copy_(torch.rand(CLASSES) + 0.5)
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    head = torch.nn.Sequential(linear, norm).eval()
    return _custom(lambda net, h: net(h), head, linear.weight * factor[:, None])


def _singleton() -> Source:
    head = torch.nn.Linear(FEATURES, CLASSES)
    return _custom(lambda net, h: net(h[:, None, :]).squeeze(1), head, head.weight)


def _matmul() -> Source:
    """The weight is a parameter stored as (n, C)."""
    head = torch.nn.ParameterDict({"w": torch.randn(FEATURES, CLASSES), "b": torch.randn(CLASSES)})
    return _custom(lambda net, h: h @ net["w"] + net["b"], head, head["w"].T)


def _einsum() -> Source:
    head = torch.nn.Linear(FEATURES, CLASSES, bias=False)
    return _custom(lambda net, h: torch.einsum("nd,cd->nc", h, net.weight), head, head.weight)


def _tokens(pool: Callable[[Any], Any]) -> Source:
    """x (N, 4, 12), a linear layer on every token, and `pool` of its scores (N, 4, C)."""
    body, head = torch.nn.Linear(12, FEATURES), torch.nn.Linear(FEATURES, CLASSES)
    module = network(lambda net, x: pool(net.head(torch.relu(net.body(x)))), body=body, head=head)
    return Source(module, torch.randn(3, 4, 12), _array(head.weight))


def _tied() -> Source:
    """x (N, 4) token numbers; the embedding is also the class vectors."""
    embedding = torch.nn.Embedding(10, FEATURES)
    module = network(
        lambda net, x: torch.nn.functional.linear(torch.tanh(net.embedding(x).mean(1)), net.embedding.weight),
        embedding=embedding,
    )
    return Source(module, torch.randint(0, 10, (3, 4)), _array(embedding.weight))


def _images(scores: Callable[[Any, Any], Any], weight: Any, **parts: Any) -> Source:
    """Images (N, 3, 8, 8) -> maps (N, 16, 4, 4), and `scores(net, maps)`; `weight` is a torch tensor."""
    trunk = torch.nn.Sequential(
        torch.nn.Conv2d(3, FEATURES, 3, stride=2, padding=1), torch.nn.BatchNorm2d(FEATURES), torch.nn.ReLU()
    )
    module = network(lambda net, x: scores(net, net.trunk(x)), trunk=trunk, **parts)
    return Source(module, torch.randn(3, 3, 8, 8), _array(weight))


def _cnn() -> Source:
    head = torch.nn.Linear(FEATURES, CLASSES)
    pool = torch.nn.AdaptiveAvgPool2d(1)
    return _images(lambda net, maps: net.head(torch.flatten(net.pool(maps), 1)), head.weight, pool=pool, head=head)


def _cnn_mean() -> Source:
    head = torch.nn.Linear(FEATURES, CLASSES)
    return _images(lambda net, maps: net.head(maps.mean((2, 3))).softmax(-1), head.weight, head=head)


def _squeezenet() -> Source:
    """The class scores of every pixel pass a ReLU before they are averaged."""
    conv = nn.Conv2d(FEATURES, CLASSES, 1)
    head = nn.Sequential(nn.Dropout(0.5), conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return _images(lambda net, maps: torch.flatten(net.head(maps), 1), conv.weight, head=head)


def _fully_convolutional() -> Source:
    """As above without the ReLU."""
    conv = nn.Conv2d(FEATURES, CLASSES, 1)
    head = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return _images(lambda net, maps: net.head(maps), conv.weight, head=head)


def _mobilenet() -> Source:
    """MobileNetV3 as timm has it: pooling, a 1x1 convolution with Hardswish, a 1x1 convolution as classifier."""
    conv = nn.Conv2d(24, CLASSES, 1)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(FEATURES, 24, 1), nn.Hardswish(), conv, nn.Flatten())
    return _images(lambda net, maps: net.head(maps), conv.weight, head=head)


def _segmentation() -> Source:
    head = nn.Conv2d(FEATURES, CLASSES, 1)
    return _images(lambda net, maps: net.head(maps), head.weight, head=head)


_MODELS: dict[str, Callable[[], Source]] = {
    "linear": _scores,
    "no-bias": partial(_scores, bias=False),
    "softmax": partial(_scores, lambda s: s.softmax(1), outputs=("probabilities",)),
    "log-softmax": partial(_scores, lambda s: s.log_softmax(-1), outputs=("log_probabilities",)),
    "logits-and-softmax": partial(_scores, lambda s: (s, s.softmax(-1)), outputs=("logits", "probabilities")),
    "sigmoid": partial(_scores, lambda s: s.sigmoid(), 1, outputs=("probability",)),
    "sigmoid-flat": partial(_scores, lambda s: s.squeeze(-1).sigmoid(), 1, outputs=("probability",)),
    "sigmoid-pair": _sigmoid_pair,
    "multi-label": partial(_scores, lambda s: s.sigmoid(), outputs=("probabilities",)),
    "regression": partial(_scores, classes=1),
    "float16": partial(_scores, dtype="float16"),
    "float64": partial(_scores, dtype="float64"),
    "temperature": partial(_scores, lambda s: s / 2.5),
    "two-heads-dict": partial(_two_heads, as_dict=True),
    "two-heads-tuple": partial(_two_heads, as_dict=False),
    "auxiliary": _auxiliary,
    "with-features": _with_features,
    "cosine": _cosine,
    "weight-norm": _weight_norm,
    "spectral-norm": _spectral_norm,
    "batch-norm": _batch_norm,
    "singleton": _singleton,
    "matmul": _matmul,
    "einsum": _einsum,
    "first-token": partial(_tokens, lambda scores: scores[:, 0]),
    "mean-of-tokens": partial(_tokens, lambda scores: scores.mean(1)),
    "all-tokens": partial(_tokens, lambda scores: scores),
    "tied-embedding": _tied,
    "cnn": _cnn,
    "cnn-mean-softmax": _cnn_mean,
    "squeezenet": _squeezenet,
    "fully-convolutional": _fully_convolutional,
    "mobilenet": _mobilenet,
    "segmentation": _segmentation,
}

_NOT_BY_DYNAMO = (
    "no-bias", "softmax", "logits-and-softmax", "sigmoid-flat", "regression", "float16", "float64", "temperature",
    "two-heads-tuple", "with-features", "batch-norm", "singleton", "matmul", "all-tokens", "cnn-mean-softmax",
    "log-softmax", "sigmoid", "multi-label", "auxiliary", "squeezenet",
)  # fmt: skip
"""What the newer exporter, which takes seconds a model, writes as the others of the table, or as the older one."""

_CHOOSE = {
    "two-heads-dict": {"output": "colour"},
    "two-heads-tuple": {"output": "colour"},
    "auxiliary": {"output": "logits"},
    "with-features": {"output": "logits"},
}

_REASONS = {"regression": r"\b(1|one)\b"}


_SEVERAL = ("all-tokens", "segmentation")
"""Those with several predictions a sample."""


@cache
def source(name: str) -> Source:
    """Make a model of the table; the same one every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sorted(_MODELS).index(name))
        return _MODELS[name]()


def legacy(name: str, folder: Path, opset: int = 17, fixed: bool = False) -> Path:
    """Write a model of the table with the exporter that traces, for any batch size or a fixed one."""
    return legacy_of(source(name), folder, opset, fixed)


def legacy_of(model: Source, folder: Path, opset: int = 17, fixed: bool = False) -> Path:
    """Write a model with the exporter that traces."""
    axes = None if fixed else {tensor: {0: "N"} for tensor in ("x", *model.outputs)}
    return _exported(model, folder, opset, dynamo=False, dynamic_axes=axes)


def _exported(model: Source, folder: Path, opset: int | None, **options: Any) -> Path:
    path = folder / "model.onnx"
    names = {"input_names": ["x"], "output_names": list(model.outputs)}
    with quiet():
        torch.onnx.export(model.module, (model.x,), path, opset_version=opset, **names, **options)
    return path


def legacy_external(name: str, folder: Path) -> Path:
    """Write a model whose tensors lie in a file beside it."""
    path = legacy(name, folder)
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def dynamo(name: str, folder: Path, opset: int | None = None, fixed: bool = False) -> Path:
    """Write a model of the table with the exporter on torch.export; its tensors lie in a file beside it."""
    return dynamo_of(source(name), folder, opset, fixed)


def dynamo_of(model: Source, folder: Path, opset: int | None = None, fixed: bool = False) -> Path:
    """Write a model with the exporter on torch.export."""
    shapes = None if fixed else ({0: torch.export.Dim("N")},)
    return _exported(model, folder, opset, dynamo=True, verbose=False, dynamic_shapes=shapes)


def feeds_of(name: str) -> Callable[[int, np.random.Generator], dict[str, Array]]:
    """Return the function that draws inputs of a model."""

    def feeds(n: int, rng: np.random.Generator) -> dict[str, Array]:
        x = source(name).x.numpy()
        shape = (n, *x.shape[1:])
        return {"x": rng.integers(0, 10, shape) if x.dtype.kind == "i" else rng.standard_normal(shape).astype(x.dtype)}

    return feeds


def weight_of(name: str) -> Callable[[], Array]:
    """Return the function that gives a model's class vectors."""
    return lambda: source(name).weight


def _case(route: str, label: str, name: str, build: Callable[[Path], Path], **fields: Any) -> Case:
    return Case(
        name=f"{route}/{label}/{name}",
        route="several" if name in _SEVERAL else route,
        build=build,
        weight=None if name in _REASONS else weight_of(name),
        reason=_REASONS.get(name, ""),
        feeds=feeds_of(name),
        needs=("torch", "onnxscript") if route == "torch-dynamo" else ("torch",),
        choose=_CHOOSE.get(name, {}),
        rtol=2e-3 if name == "float16" else 1e-5,
        **fields,
    )


def _ambiguous(route: str, name: str, build: Callable[[Path], Path]) -> Case:
    """Several heads and no choice."""
    needs = ("torch", "onnxscript") if route == "torch-dynamo" else ("torch",)
    return Case(f"{route}/not-chosen/{name}", route, build, None, r"choose|--head|--output", feeds_of(name), needs)


_OPSETS = {
    7: ("linear", "squeezenet", "cnn-mean-softmax"),
    11: ("cosine", "weight-norm", "singleton", "sigmoid-pair", "log-softmax", "tied-embedding", "mobilenet"),
    13: ("cnn", "first-token", "mean-of-tokens"),
    23: ("linear", "mobilenet", "cnn-mean-softmax"),
}

CASES: tuple[Case, ...] = (
    *(
        _case("torch-legacy", "opset17", name, partial(legacy, name))
        for name in _MODELS
        if name != "spectral-norm"  # the exporter does not know aten::vdot
    ),
    *(
        _case("torch-legacy", f"opset{k}", name, partial(legacy, name, opset=k))
        for k, names in _OPSETS.items()
        for name in names
    ),
    *(
        _case("torch-legacy", "fixed-batch", name, partial(legacy, name, fixed=True))
        for name in ("linear", "squeezenet")
    ),
    *(_case("torch-legacy", "external", name, partial(legacy_external, name)) for name in ("linear", "mobilenet")),
    *(_ambiguous("torch-legacy", name, partial(legacy, name)) for name in ("two-heads-tuple", "auxiliary")),
    *(_case("torch-dynamo", "default", name, partial(dynamo, name)) for name in _MODELS if name not in _NOT_BY_DYNAMO),
    _case("torch-dynamo", "opset18", "mean-of-tokens", partial(dynamo, "mean-of-tokens", opset=18)),
    _case("torch-dynamo", "opset26", "mobilenet", partial(dynamo, "mobilenet", opset=26)),
    _case("torch-dynamo", "fixed-batch", "cnn", partial(dynamo, "cnn", fixed=True)),
    _ambiguous("torch-dynamo", "two-heads-dict", partial(dynamo, "two-heads-dict")),
)
