"""What the labels of a run look like before anything is searched: wrong ones would make every later number so."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.calibration.job import Job
from tna_onnx.calibration.task import Task
from tna_onnx.data.coverage import Coverage
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

    def require(self, name: str) -> None:
        """Refuse a map by name for which classes are missing.

        Raises:
            DataError: there are such classes.
        """
        if name != "auto" and not self.covers(name):
            raise DataError(
                f"--map {name}: {self.coverage.text('the calibration data')}; this map moves classes against each "
                "other, and would learn that these never come; add samples of them, use --map ts or ets, or say "
                "--trust-labels if these classes cannot come"
            )


def check_labels(job: Job, task: Task) -> LabelCheck:
    """Look at the labels of both data beside the model's predictions.

    Raises:
        CheckFailed: the accuracy is not the expected one.
        DataError: labels look wrong, and the user does not say that they are right.
    """
    trusted = job.settings.trust_labels
    classes = task.readout.n_classes
    names = task.class_names
    coverage = Coverage.of(task.source.labels, classes)
    warnings = [coverage.text("the calibration data", names)]
    if job.held_out is not None and task.held_out is not None:
        labels = task.held_out.source.labels
        predicted = task.logits(task.weight, on=task.held_out).predictions()
        warnings.append(_trust(job.held_out.check(predicted, labels, names, classes), "--eval", trusted=trusted))
        warnings.append(Coverage.of(labels, classes).text("the held-out data", names))
    predicted = task.logits(task.weight).predictions()
    warnings.append(_trust(job.calib.check(predicted, task.source.labels, names, classes), "--calib", trusted=trusted))
    if coverage.left_out and not trusted:
        others = "only maps that keep every prediction were looked at; --trust-labels looks at all of them"
        warnings[0] = f"{warnings[0]}: {others}"
    return LabelCheck(coverage, tuple(warning for warning in warnings if warning), trusted)


def _trust(suspicion: str, flag: str, *, trusted: bool) -> str:
    """Return what looks wrong, if the user trusts the labels all the same.

    Raises:
        DataError: the user does not.
    """
    if suspicion and not trusted:
        raise DataError(f"{flag}: {suspicion}; --trust-labels calibrates all the same")
    return suspicion
