"""What the tests of rewriting share: a result beside its source, and what the written file has to compute."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.graph.samples import Array, Sample, assert_gives, run
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import Rewritten, rewrite
from tna_onnx.graph.scores import choose_head


def write(model: Model, rewritten: Rewritten) -> Path:
    """Write the result beside its source, where external data are found."""
    path = model.path.with_name("result.onnx")
    path.write_bytes(rewritten.proto.SerializeToString())
    return path


def differences(model: Model, rewritten: Rewritten, path: Path) -> list[str]:
    return unexpected(model, rewritten, onnx.load_model(path, load_external_data=False))


_CONTENT = (
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "external_data",
    "data_location",
)  # fmt: skip


def unexpected(model: Model, rewritten: Rewritten, written: onnx.ModelProto) -> list[str]:
    """Compare as encoded: nothing may differ but what the rewrite names. This is the definition, by hand."""
    copy = onnx.ModelProto()
    copy.CopyFrom(written)
    texts = _initializers(model.proto.graph, copy.graph, rewritten)
    texts += _nodes(model, copy.graph, rewritten)
    opsets = list(model.proto.opset_import)
    kept = [(e.key, e.value) for e in copy.metadata_props if not e.key.startswith("tna_onnx.")]
    rest = {
        "inputs": (model.proto.graph.input, copy.graph.input),
        "outputs": (model.proto.graph.output, copy.graph.output),
        "opsets": (opsets, [entry for entry in copy.opset_import if entry.domain or entry in opsets]),
    }
    texts += [name for name, (before, after) in rest.items() if list(before) != list(after)]
    if kept != [(e.key, e.value) for e in model.proto.metadata_props]:
        texts.append("metadata")
    original = onnx.ModelProto()
    original.CopyFrom(model.proto)
    for proto in (original, copy):
        for field in ("node", "initializer", "input", "output"):
            proto.graph.ClearField(field)
        proto.ClearField("opset_import")
        proto.ClearField("metadata_props")
    if original.SerializeToString(deterministic=True) != copy.SerializeToString(deterministic=True):
        texts.append("another field")
    return texts


def _initializers(before: onnx.GraphProto, after: onnx.GraphProto, rewritten: Rewritten) -> list[str]:
    texts = []
    new = list(after.initializer)[len(before.initializer) :]
    if sorted(tensor.name for tensor in new) != sorted(rewritten.added):
        texts.append(f"new initializers {[tensor.name for tensor in new]}")
    names = {tensor.name for tensor in after.initializer}
    texts += [f"missing initializer '{t.name}'" for t in before.initializer if t.name not in names]
    for old, other in zip(before.initializer, after.initializer, strict=False):
        pair = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in (old, other)]
        for tensor in pair if old.name in rewritten.changed else ():
            for field in _CONTENT:
                tensor.ClearField(field)
        if pair[0].SerializeToString() != pair[1].SerializeToString():
            texts.append(f"initializer '{old.name}'")
    return texts


def _nodes(model: Model, after: onnx.GraphProto, rewritten: Rewritten) -> list[str]:
    kept = [node for node in after.node if node.name not in rewritten.nodes or not node.name]
    if len(kept) != len(model.labels):
        return [f"{len(kept)} nodes, not {len(model.labels)}"]
    texts = []
    for k, (old, other) in enumerate(zip(model.proto.graph.node, kept, strict=True)):
        names = [pair for field in ("input", "output") for pair in _pairs(getattr(old, field), getattr(other, field))]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (old, other)]
        for node in copies:
            node.ClearField("input")
            node.ClearField("output")
            own = [a for a in node.attribute if not _may_change(old, a, rewritten)]
            del node.attribute[:]
            node.attribute.extend(own)
        renamed = all(new.startswith("tna_onnx/") for before, new in names if new != before)
        if not renamed or copies[0].SerializeToString() != copies[1].SerializeToString():
            texts.append(f"node '{model.labels[k]}'")
    return texts


def _pairs(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, str]]:
    return itertools.zip_longest(before, after, fillvalue="")


def _may_change(node: onnx.NodeProto, attribute: onnx.AttributeProto, rewritten: Rewritten) -> bool:
    if node.op_type == "Constant":
        return node.output[0] in rewritten.changed
    kinds = {"LinearClassifier": ("coefficients", "intercepts", "post_transform"), "DequantizeLinear": ("axis",)}
    return attribute.name in kinds.get(node.op_type, ())


def drawn(head: Head) -> tuple[Array, Array]:
    """A weight and a bias of random numbers, as the head takes them."""
    rng = np.random.default_rng(12)
    weight = rng.standard_normal((head.n_classes, head.n_features))
    bias = rng.standard_normal(head.n_classes)
    return head.anchored(weight).astype(head.working_type), head.anchored(bias).astype(head.working_type)


def write_both(model: Model, weight: Array, bias: Array, head: Head | None = None) -> tuple[Path, set[str], set[str]]:
    """Write a new weight and a new bias; return the path, what changed and what is new."""
    rewritten = rewrite(model, head or choose_head(model), weight, bias=bias, metadata={})
    path = write(model, rewritten)
    assert differences(model, rewritten, path) == []
    onnx.checker.check_model(str(path), full_check=True)
    assert not rewritten.nodes
    return path, rewritten.changed, rewritten.added


def sizes(z: Array, weight: Array, bias: Array) -> Array:
    """Return the sums of the sizes of all terms, which bound the rounding of the logits."""
    return np.abs(z) @ np.abs(weight.astype(np.float64)).T + np.abs(bias)


def assert_computes(path: Path, sample: Sample, x: Array, z: Array, weight: Array, bias: Array) -> None:
    """Hold all outputs of a file, in ONNX Runtime and in ONNX's own evaluator, against those of weight and bias."""
    logits, size = z @ weight.astype(np.float64).T + bias, sizes(z, weight, bias)
    names = list(sample.outputs)
    evaluator = ReferenceEvaluator(onnx.load(path))
    for found in (run(path, names, x), evaluator.run(names, {"x": x})):
        for array, kind in zip(found, sample.outputs.values(), strict=True):
            assert_gives(np.asarray(array), kind, logits, size, sample.coarsest)
