"""Small random classifiers of the transformers library, written by both of PyTorch's exporters."""

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.corpus.case import Case, Library, quiet

torch = Library("torch")

Array = NDArray[Any]
_CLASSES, _PAD, _LENGTH = 4, 0, 7
_SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "attn_implementation": "eager",
}
_TEXT = {"vocab_size": 40, "pad_token_id": _PAD, "max_position_embeddings": 16, "attn_implementation": "eager"}
_PATCHES = _SMALL | {"image_size": 16, "patch_size": 8}
_DISTILBERT = _TEXT | {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
_GPT2 = {"vocab_size": 40, "pad_token_id": _PAD, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
_LEVIT = {"hidden_sizes": [16, 16, 16], "depths": [1, 1, 1], "num_attention_heads": [2, 2, 2], "key_dim": [4, 4, 4]}
_SEQUENCE, _IMAGE = "ForSequenceClassification", "ForImageClassification"
_TWO = "ForImageClassificationWithTeacher"

_MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("Bert", _SEQUENCE, _TEXT | _SMALL, "classifier"),
    "distilbert": ("DistilBert", _SEQUENCE, _DISTILBERT, "classifier"),
    "roberta": ("Roberta", _SEQUENCE, _TEXT | _SMALL, "classifier.out_proj"),
    "albert": ("Albert", _SEQUENCE, _TEXT | _SMALL | {"embedding_size": 8}, "classifier"),
    "gpt2": ("GPT2", _SEQUENCE, _GPT2 | {"attn_implementation": "eager"}, "score"),
    "bert-tokens": ("Bert", "ForTokenClassification", _TEXT | _SMALL, "classifier"),
    "vit": ("ViT", _IMAGE, _PATCHES, "classifier"),
    "convnext": ("ConvNext", _IMAGE, {"depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2}, "classifier"),
    "deit": ("DeiT", _TWO, _PATCHES, "cls_classifier distillation_classifier"),
    "levit": ("Levit", _TWO, _LEVIT | {"image_size": 32}, "classifier.linear classifier_distill.linear"),
    "swiftformer": (
        "SwiftFormer", _IMAGE, {"depths": [1, 1], "embed_dims": [8, 16], "downsamples": [True, True]},
        "head + dist_head",
    ),
}  # fmt: skip
"""Architecture, task, settings, and the last linear layer, or two that are averaged; with a + they read the same."""
_IMAGES = {"vit": 16, "convnext": 16, "deit": 16, "levit": 32, "swiftformer": 32}


def feeds_of(name: str, n: int, rng: np.random.Generator) -> dict[str, Array]:
    """Draw inputs of a model: images, or token numbers with a mask of different lengths."""
    if name in _IMAGES:
        return {"pixel_values": rng.standard_normal((n, 3, _IMAGES[name], _IMAGES[name])).astype(np.float32)}
    ids = rng.integers(1, 40, (n, _LENGTH))
    lengths = rng.integers(3, _LENGTH + 1, (n, 1))
    mask = (np.arange(_LENGTH) < lengths).astype(np.int64)
    return {"input_ids": np.where(mask == 1, ids, _PAD), "attention_mask": mask}


@cache
def _module(name: str) -> Any:
    """Return the module with the logits as its only result, in eval mode."""
    with quiet(), torch.random.fork_rng(devices=[]):
        import transformers

        torch.manual_seed(3)
        architecture, task, settings, _ = _MODELS[name]
        config = getattr(transformers, f"{architecture}Config")(**settings, num_labels=_CLASSES)
        model = getattr(transformers, architecture + task)(config)
        if name == "levit":  # apart from the other, as after training: two layers that are the same are written once
            model.classifier_distill.batch_norm.bias.data.uniform_()

    class Images(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any) -> Any:
            return self.model(pixel_values=pixel_values).logits

    class Text(Images):
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

    return (Images() if name in _IMAGES else Text()).eval()


def weight_of(name: str) -> Array:
    """Return the (C, n) weight of a model's last linear layer, of several side by side or added up."""
    words = _MODELS[name][-1].split()
    layers = [_module(name).model.get_submodule(word) for word in words if word != "+"]
    values = [layer.weight.detach().numpy().copy() for layer in layers]
    value: Array = np.sum(values, axis=0) if "+" in words else np.concatenate(values, axis=1)
    return value


def write(name: str, exporter: str, folder: Path) -> Path:
    """Write a model with "legacy" (opset 17) or "dynamo" (its default)."""
    path, example = folder / "model.onnx", feeds_of(name, 3, np.random.default_rng(0))
    tensors = tuple(torch.from_numpy(value) for value in example.values())
    common: dict[str, Any] = {"input_names": list(example), "output_names": ["logits"]}
    axes = {0: "N"} if name in _IMAGES else {0: "N", 1: "T"}
    module = _module.__wrapped__(name)  # one that has not run yet: LeViT keeps what the other exporter computed
    with quiet():
        if exporter == "legacy":
            dynamic = {**dict.fromkeys(example, axes), "logits": {0: "N"}}
            torch.onnx.export(module, tensors, path, dynamo=False, opset_version=17, dynamic_axes=dynamic, **common)
        else:
            shapes = {key: {0: torch.export.Dim("N")} for key in example}
            torch.onnx.export(module, tensors, path, dynamo=True, verbose=False, dynamic_shapes=shapes, **common)
    return path


def _case(name: str, exporter: str) -> Case:
    return Case(
        name=f"transformers/{exporter}/{name}",
        route="several" if name == "bert-tokens" else "transformers",
        build=partial(write, name, exporter),
        weight=partial(weight_of, name),
        feeds=partial(feeds_of, name),
        needs=("torch", "transformers", *(["onnxscript"] if exporter == "dynamo" else [])),
    )


# Seconds each in the newer exporter, and built of the layers of BERT, ViT and SwiftFormer.
_ALIKE = ("distilbert", "roberta", "albert", "bert-tokens", "deit", "levit")

CASES: tuple[Case, ...] = (
    *(_case(name, "legacy") for name in _MODELS),
    *(_case(name, "dynamo") for name in _MODELS if name not in _ALIKE),
)
