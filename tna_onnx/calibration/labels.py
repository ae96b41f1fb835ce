"""What the labels of a run look like before anything is searched: wrong ones would make every later number so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tna_onnx.calibration.job import Job
from tna_onnx.calibration.task import Task
from tna_onnx.data.coverage import FEW, Coverage, marks_text
from tna_onnx.data.label_order import order_warning
from tna_onnx.data.suspicion import Suspicion, warnings_of
from tna_onnx.errors import DataError
from tna_onnx.maps import MAPS

__all__ = ["LabelCheck", "check_labels"]


@dataclass(frozen=True)
class LabelCheck:
    """What was seen on labels.

    Attributes:
        coverage: classes of the calibration labels.
        warnings: sentences on what looks wrong or is missing.
        trusted: whether the user says that the labels are right.
    """

    coverage: Coverage
    warnings: tuple[str, ...] = ()
    trusted: bool = False

    def covers(self, name: str) -> bool:
        """Whether labels say enough for a map: one that can change predictions moves classes against each other."""
        keeps_order = name == "none" or MAPS[name].keeps_order
        return keeps_order or self.trusted or not self.coverage.left_out

    def require(self, name: str, option: str = "map") -> None:
        """Refuse a map by name for which classes are missing.

        Args:
            name: of the map, or auto.
            option: that names it.

        Raises:
            DataError: there are such classes.
        """
        if name != "auto" and not self.covers(name):
            raise DataError(
                f"--{option} {name}: {self.coverage.text('the calibration data')}; it would learn that these "
                "classes never occur; add samples of them, use --map ts or ets, or --trust-labels if they cannot occur"
            )


def check_labels(job: Job, task: Task) -> LabelCheck:
    """Look at the labels of both data beside the model's predictions.

    Raises:
        CheckFailed: the accuracy is not the expected one.
        DataError: labels look wrong, and the user does not say that they are right.
    """
    if task.readout.multi_label:
        return _check_marks(job, task)
    trusted = job.settings.trust_labels
    classes = task.readout.n_classes
    names = task.class_names
    coverage = Coverage.of(task.source.labels, classes)
    warnings = [coverage.text("the calibration data", names)]
    if job.held_out is not None and task.held_out is not None:
        labels = task.held_out.source.labels
        logits = task.logits(task.weight, on=task.held_out)
        predicted = logits.predictions()
        logits.forget()  # the search comes first
        suspicion = job.held_out.check(predicted, labels, names, classes)
        warnings += _trust(suspicion, names, "--eval", trusted=trusted)
        warnings.append(Coverage.of(labels, classes).text("the held-out data", names))
    predicted = task.logits(task.weight).predictions()
    suspicion = job.calib.check(predicted, task.source.labels, names, classes)
    warnings += _trust(suspicion, names, "--calib", trusted=trusted)
    if coverage.left_out and not trusted and job.settings.resolved_map == "auto":
        others = "maps with numbers of their own for each class were left out; --trust-labels allows them"
        warnings[0] = f"{warnings[0]}: {others}"
    return LabelCheck(coverage, tuple(warning for warning in warnings if warning), trusted)


def _check_marks(job: Job, task: Task) -> LabelCheck:
    """Look at labels that hold or do not, each by itself.

    Raises:
        CheckFailed: the share of right labels is not the expected one.
        DataError: their columns seem to stand in another order, and the user does not say that they are right.
    """
    warnings = []
    for data, collected, what in (
        (job.calib, task.calibration, "the calibration data"),
        (job.held_out, task.held_out, "the held-out data"),
    ):
        if data is None or collected is None:
            continue
        marks = collected.source.labels
        predicted = task.logits(task.weight, on=collected).predictions()
        data.check_accuracy(float(np.mean(predicted == marks)), len(marks))
        warnings.append(marks_text(marks, what, task.class_names))
        warning = order_warning(predicted, marks, task.class_names)
        if warning and not job.settings.trust_labels:
            raise DataError(f"{collected.source.describe()}: {warning}; --trust-labels calibrates all the same")
        warnings.append(warning)
    marks = task.source.labels
    rarer = np.minimum(marks.sum(axis=0), len(marks) - marks.sum(axis=0))
    unseen = tuple(np.flatnonzero(rarer == 0).tolist())
    scarce = tuple(np.flatnonzero((rarer > 0) & (rarer < FEW)).tolist())
    coverage = Coverage(marks.shape[1], unseen, scarce, left_out=False)
    return LabelCheck(coverage, tuple(warning for warning in warnings if warning), job.settings.trust_labels)


def _trust(suspicion: Suspicion | None, names: Sequence[str] | None, flag: str, *, trusted: bool) -> tuple[str, ...]:
    """Return what looks wrong, where it does not tell against the labels or the user trusts them all the same.

    Raises:
        DataError: the user does not.
    """
    warnings = warnings_of(suspicion, names)
    if suspicion is not None and suspicion.tells and not trusted:
        raise DataError(f"{flag}: {warnings[0]}; --trust-labels calibrates all the same")
    return warnings
