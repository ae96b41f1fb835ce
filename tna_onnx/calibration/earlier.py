"""What this tool did to a model before: work on which a calibration cannot be built, and what there is to say of it."""

from __future__ import annotations

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model
from tna_onnx.graph.own_names import RAW_LOGITS, calibrated_heads, provenance

__all__ = ["refuse_finished", "shift_notes"]


def refuse_finished(model: Model) -> None:
    """Refuse a model that holds decisions, or nodes of this tool behind its logits.

    Raises:
        UnsupportedModel: such a model.
    """
    entries = provenance(model)
    # thresholds are for the probabilities as they are
    if "guard" in entries:
        raise UnsupportedModel(
            f"{model.name}: has been guarded already, with thresholds for its probabilities as they are; calibrate the "
            "model without these outputs, and guard the result"
        )
    if calibrated_heads(model):
        raise UnsupportedModel(
            f"{model.name}: several of its heads were recalibrated before, and what the file says of them would be "
            "lost; start from the original model, with all heads"
        )
    if RAW_LOGITS not in model.producers:
        return
    if "shift" in entries and "map" not in entries:
        raise UnsupportedModel(
            f"{model.name}: has been shifted already, by nodes behind its logits; calibrate the model before, and "
            "shift the result"
        )
    raise UnsupportedModel(
        f"{model.name}: already holds a map that tna-onnx wrote ('{RAW_LOGITS}'); start from the original model"
    )


def shift_notes(model: Model) -> tuple[str, ...]:
    """Say that a model was given other class frequencies, which a calibration fits anew."""
    if "shift" not in provenance(model):
        return ()
    return (
        f"{model.name} was shifted to other class frequencies: a calibration on samples with others would undo that, "
        "so these must come from the target; better calibrate first, and shift the result",
    )
