"""Exported models after a second tool: graph optimisers, simplifiers, conversion to float16, quantisation.

The truth stays the weight of the model before export. A quantised weight differs from it by rounding.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.corpus import exported_torch, exported_transformers
from tests.corpus.case import Case, Unavailable, quiet

Array = NDArray[Any]
_HALF = 2e-3
# Half a step is 0.4 % of the largest weight with 8 bits and 0.8 % with 7.
_STEP = 1e-2


def _bert(folder: Path) -> Path:
    return exported_transformers.write("bert", "legacy", folder)


def _ort_optimized(write: Callable[[Path], Path], level: str, folder: Path) -> Path:
    """Save what ONNX Runtime makes of a model at a level: BASIC, EXTENDED or ALL."""
    import onnxruntime as ort

    path, options = folder / "optimized.onnx", ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3  # it warns that the file is for this kind of machine
    ort.InferenceSession(str(write(folder)), options, providers=["CPUExecutionProvider"])
    return path


def _blocked(write: Callable[[Path], Path], folder: Path) -> Path:
    """Save at level ALL, where the head becomes a convolution on blocks of channels on most CPUs."""
    path = _ort_optimized(write, "ALL", folder)
    if not any("nchwc" in node.domain for node in onnx.load(path).graph.node):
        raise Unavailable("ONNX Runtime does not block channels on this CPU")
    return path


def _fused_transformer(folder: Path) -> Path:
    """Run ONNX Runtime's fusion tool for transformers."""
    path = folder / "fused.onnx"
    with quiet():
        from onnxruntime.transformers.optimizer import optimize_model

        model = optimize_model(
            str(_bert(folder)), model_type="bert", num_heads=2, hidden_size=16, only_onnxruntime=False
        )
        model.save_model_to_file(str(path))
    return path


def _onnxslim(write: Callable[[Path], Path], folder: Path) -> Path:
    path = folder / "slim.onnx"
    with quiet():
        import onnxslim

        onnxslim.slim(str(write(folder)), str(path))
    return path


def _onnxsim(write: Callable[[Path], Path], folder: Path) -> Path:
    path = folder / "simplified.onnx"
    with quiet():
        import onnxsim

        model, _ = onnxsim.simplify(str(write(folder)))
    onnx.save(model, path)
    return path


def _float16(write: Callable[[Path], Path], tool: str, keep: bool, folder: Path) -> Path:
    """Convert to float16; `keep`: the graph's inputs and outputs stay float32, behind a Cast."""
    path = folder / "half.onnx"
    with quiet():
        if tool == "onnxconverter-common":
            from onnxconverter_common.float16 import convert_float_to_float16
        else:
            from onnxruntime.transformers.float16 import convert_float_to_float16

        model = convert_float_to_float16(onnx.load(write(folder)), keep_io_types=keep)
    onnx.save(model, path)
    return path


def _dynamic(name: str, folder: Path) -> Path:
    path = folder / "dynamic.onnx"
    with quiet():
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(exported_torch.legacy(name, folder), path)
    return path


def _four_bits(name: str, folder: Path) -> Path:
    path = folder / "bits.onnx"
    with quiet():
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        tool = MatMulNBitsQuantizer(onnx.load(exported_torch.legacy(name, folder)), block_size=16, is_symmetric=True)
        tool.process()
    onnx.save(tool.model.model, path)
    return path


def _static(
    name: str,
    folder: Path,
    form: str = "QDQ",
    weights: str = "QInt8",
    activations: str = "QInt8",
    opset: int = 17,
    **options: Any,
) -> Path:
    """Quantise weights and activations, with ranges from 32 random samples; `form`: QDQ or QOperator."""
    path = folder / "static.onnx"
    with quiet():
        from onnxruntime import quantization

        feeds, rng = exported_torch.feeds_of(name), np.random.default_rng(0)
        batches = iter([feeds(8, rng) for _ in range(4)])

        class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
            def get_next(self) -> dict[str, Array] | None:
                return next(batches, None)

        quantization.quantize_static(
            exported_torch.legacy(name, folder, opset),
            path,
            Reader(),
            quant_format=quantization.QuantFormat[form],
            weight_type=quantization.QuantType[weights],
            activation_type=quantization.QuantType[activations],
            **options,
        )
    return path


def _case(
    route: str,
    label: str,
    name: str,
    build: Callable[[Path], Path],
    reason: str = "",
    needs: str = "onnxruntime",
    **fields: Any,
) -> Case:
    """Return the case of a model of `exported_torch`, refused where there is a reason."""
    return Case(
        name=f"{route}/{label}/{name}",
        route=route,
        build=build,
        weight=None if reason else exported_torch.weight_of(name),
        reason=reason,
        feeds=fields.pop("feeds", exported_torch.feeds_of(name)),
        needs=("torch", needs),
        **fields,
    )


def _bert_case(route: str, label: str, build: Callable[[Path], Path], needs: str = "onnxruntime") -> Case:
    return Case(
        name=f"{route}/{label}/bert",
        route=route,
        build=build,
        weight=partial(exported_transformers.weight_of, "bert"),
        feeds=partial(exported_transformers.feeds_of, "bert"),
        needs=("torch", "transformers", needs),
    )


def _half(tool: str, keep: bool, name: str) -> Case:
    def feeds(n: int, rng: np.random.Generator) -> dict[str, Array]:
        values = exported_torch.feeds_of(name)(n, rng)
        return values if keep else {key: value.astype(np.float16) for key, value in values.items()}

    module = "onnxconverter_common" if tool == "onnxconverter-common" else "onnxruntime"
    build = partial(_float16, partial(exported_torch.legacy, name), tool, keep)
    label = f"{tool}-{'float32' if keep else 'float16'}-io"
    return _case("float16", label, name, build, needs=module, feeds=feeds, rtol=_HALF)


_QDQ: dict[str, dict[str, Any]] = {
    "per-tensor": {},
    "per-channel": {"per_channel": True},
    "uint8": {"weights": "QUInt8", "activations": "QUInt8"},
    "uint8-activations": {"activations": "QUInt8"},
    "7-bit": {"reduce_range": True},
    "16-bit": {"weights": "QInt16", "activations": "QUInt16", "opset": 21},
    "16-bit-contrib": {"weights": "QInt16", "activations": "QUInt16", "extra_options": {"UseQDQContribOps": True}},
    "float-bias": {"extra_options": {"QuantizeBias": False}},
}

_SIMPLIFIED = ("linear", "cnn", "squeezenet", "mobilenet", "cosine", "temperature", "tied-embedding", "batch-norm")

CASES: tuple[Case, ...] = (
    *(
        _case(
            "ort-optimized", level.lower(), name, partial(_ort_optimized, partial(exported_torch.legacy, name), level)
        )
        for level in ("BASIC", "EXTENDED", "ALL")
        for name in (
            ("linear", "cnn", "cnn-mean-softmax", "cosine", "sigmoid", "log-softmax", "temperature")
            + ("weight-norm", "first-token", "mean-of-tokens", "tied-embedding", "singleton")
            + (() if level == "ALL" else ("squeezenet", "mobilenet", "fully-convolutional"))
        )
    ),
    *(
        _case("ort-optimized", "all", name, partial(_blocked, partial(exported_torch.legacy, name)), "nchwc")
        for name in ("squeezenet", "mobilenet", "fully-convolutional")
    ),
    *(
        _bert_case("ort-optimized", level.lower(), partial(_ort_optimized, _bert, level))
        for level in ("BASIC", "EXTENDED", "ALL")
    ),
    _bert_case("ort-optimized", "transformers-tool", _fused_transformer),
    *(
        _case(tool, "opset17", name, partial(run, partial(exported_torch.legacy, name)), needs=tool)
        for tool, run in (("onnxslim", _onnxslim), ("onnxsim", _onnxsim))
        for name in _SIMPLIFIED
    ),
    _bert_case("onnxslim", "opset17", partial(_onnxslim, _bert), "onnxslim"),
    _bert_case("onnxsim", "opset17", partial(_onnxsim, _bert), "onnxsim"),
    *(
        _half(tool, keep, name)
        for tool in ("onnxconverter-common", "onnxruntime")
        for keep in (True, False)
        for name in ("linear", "squeezenet", "cosine", "cnn-mean-softmax", "first-token")
    ),
    *(
        _case("qdq", label, name, partial(_static, name, **options), rtol=_STEP)
        for label, options in _QDQ.items()
        for name in ("linear", "cnn", "squeezenet", "mobilenet", "cnn-mean-softmax", "sigmoid")
        if label in ("per-tensor", "per-channel") or name in ("linear", "mobilenet")
    ),
    *(
        _case("quantized", label, name, partial(_static, name, form="QOperator", **options), "quanti")
        for label, options in (("operators", {}), ("operators-per-channel", {"per_channel": True}))
        for name in ("linear", "no-bias", "cnn", "squeezenet", "mobilenet")
    ),
    *(
        _case("quantized", "dynamic", name, partial(_dynamic, name), "quanti")
        for name in ("linear", "cnn", "squeezenet", "sigmoid")
    ),
    *(_case("quantized", "4-bit", name, partial(_four_bits, name), "quanti") for name in ("matmul", "no-bias")),
)
