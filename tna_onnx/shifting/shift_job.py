"""What `shift` was asked for, and all that it opens: the model, labelled samples, and samples of the data to come."""

from dataclasses import dataclass, field

from tna_onnx.data.options import Data
from tna_onnx.data.source import Source
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.classifier import OpenModel, read_classifier
from tna_onnx.extraction.head_check import CheckedHead, check_readout
from tna_onnx.extraction.opened_samples import open_inputs
from tna_onnx.graph.load import PREFIX, Model
from tna_onnx.graph.readout import ClassOutput, Readout, require_one_prediction
from tna_onnx.graph.scores import find_readout
from tna_onnx.pipeline.job import ModelJob
from tna_onnx.pipeline.opening import Opened
from tna_onnx.pipeline.other_outputs import find_others
from tna_onnx.pipeline.sample_checks import DigestedSamples, check_target
from tna_onnx.runtime import parse_device
from tna_onnx.shifting.shift_settings import ShiftSettings


@dataclass(frozen=True, eq=False)
class ShiftJob(ModelJob):
    """The request for new class frequencies: `calib` is like the training data, `held_out` like the data to come.

    Raises:
        UsageError: frequencies that are both given and to be estimated, or neither.
    """

    target: Data | None = None  # samples without labels of the data to come; None where their frequencies are given
    settings: ShiftSettings = field(default_factory=ShiftSettings)  # where the frequencies come from

    @property
    def method(self) -> str:
        """How the frequencies to come are known."""
        return "given" if self.target is None else self.settings.estimator

    def __post_init__(self) -> None:
        stated = (self.target is not None, self.settings.target_prior is not None, bool(self.settings.only))
        if sum(stated) != 1:
            raise UsageError(
                "expected either class frequencies (--target-prior FILE or uniform), samples without labels to "
                "estimate them on (--target-data), or the classes that can occur (--only CLASS,...)"
            )


@dataclass(frozen=True, eq=False)
class ShiftSamples(Opened):
    """The model, and labelled samples of the data that it was made for, as `source`."""

    probed: CheckedHead  # where its scores are
    unlabelled: Source | None  # samples of the target without labels; None where its frequencies are given
    unmoved: tuple[str, ...]  # other outputs that stay: those with the class of each sample among them


def open_shift(job: ShiftJob) -> ShiftSamples:
    """Open model and data, cheapest first."""
    model, output = read_classifier(job.model, job.options)
    if "guard" in model.provenance:
        raise UnsupportedModel(
            f"{model.name}: has been guarded already, with thresholds for its probabilities as they are; shift the "
            "model without these outputs, and guard the result with samples of the target"
        )
    if "shift" in model.provenance:
        raise UnsupportedModel(f"{model.name}: has been shifted already; start from the model before that shift")
    require_one_prediction(model, output, "class frequencies are estimated on samples of one prediction each")
    readout = _readout(model, job, output)
    opened = OpenModel(model, readout, parse_device(job.device), job.calib, output)
    data, source = open_inputs(opened, job.calib)
    unlabelled: Source | None = None
    held_out: Source | None = None
    notes = source.notes
    if job.target is not None:
        # labels that the samples of the target bring are not read: an estimate must not know them
        unlabelled = open_inputs(opened, job.target, labels=False)[1]
        if not len(unlabelled):
            raise DataError(f"--target-data: {unlabelled.describe()}: expected samples, found none")
        notes = (*notes, *unlabelled.notes)
    if job.held_out is not None:
        held_out = open_inputs(opened, job.held_out)[1]
    target, evaluated = (None if samples is None else DigestedSamples.of(samples) for samples in (unlabelled, held_out))
    notes = (*check_target(model, DigestedSamples.of(source), target, evaluated, job.calib.limits), *notes)
    size = job.batch_size
    probed = check_readout(opened, readout, opened.session, source, size)
    other_outputs = find_others(model, probed.readout, output, opened.device, source, size)
    labels = [label.name for label in other_outputs.labels]
    decisions = [
        f"output '{name}' is the model's own decision and is unchanged, so another class may be likelier: take the "
        "class from the probabilities to have it follow the new class frequencies"
        for name in labels
    ]
    notes = (*notes, *probed.notes, *decisions)
    return ShiftSamples(opened, data, source, held_out, size, notes, probed, unlabelled, (*other_outputs.rest, *labels))


# What the graph does not show behind an appended map; provenance tells.
_KINDS = {"logits": "logits", "positive_logit": "logit"}


def _readout(model: Model, job: ShiftJob, output: ClassOutput) -> Readout:
    """Return where the scores are, also behind a map that this package added."""
    options = job.options
    kind = options.output_kind
    name = options.output_name
    if any(tensor.startswith(f"{PREFIX}/") for tensor in model.producers):
        kind = kind or _KINDS.get(output.kind)  # type: ignore[assignment]  # words of the same choice
        name = name or output.name
    # the word names a head by its output, which leads to the scores behind a map too
    head = None if options.head == output.name else options.head
    return find_readout(model, head, name, kind)
