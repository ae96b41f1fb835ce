"""Opening a source model, and sessions on all or part of it: `OpenModel` has one session for all that a run reads,
`Runner` runs samples that hold tensors from inside the graph, and `open_source` can try a file in a child process
first.

A flaw in the compiled code of ONNX or ONNX Runtime can end a process on a damaged model. The child (`main`)
opens the model with exactly that code. Where it ends otherwise than in order, the model is refused, and this process
has not opened it.

It says on standard output that it has started. Then it does what native code of ONNX and ONNX Runtime does with a
model: it is parsed, its functions are inlined, constants are folded, the checker and shape inference look at it, and
sessions are created on all of it and on the parts up to each head. What a model is refused for is not told: the parent
process refuses it for the same reason. Exit code 0 means that no native code crashed, and 70 (`INTERNAL_ERROR`) that
this package has a bug, whose traceback is on standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch, InputSpec
from tna_onnx.errors import INTERNAL_ERROR, DeviceError, TnaError, UnsupportedModel
from tna_onnx.extraction.position_rows import PositionSession
from tna_onnx.extraction.preparation import Preparation
from tna_onnx.files import temporary_folder, write_new
from tna_onnx.graph.cut import ModelProto, cut_at, cut_between, read_beside
from tna_onnx.graph.external import real_places
from tna_onnx.graph.head import find_heads
from tna_onnx.graph.load import Model, checker_complaint, load_model, model_bytes
from tna_onnx.graph.options import ModelLimits, ModelOptions, ModelSource
from tna_onnx.graph.outputs import ClassOutput, output_of
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.scores import find_readout
from tna_onnx.graph.tensors import pieces
from tna_onnx.runtime import AT_ONCE, Device, Session, open_session, runtime_version


@dataclass(eq=False)
class OpenModel:
    """A source model and its session, which is opened at the first use and serves the whole run.

    The session gives the features, the logits, what the nodes between them read, and the output that classifies: the
    head check and the collection of all data share it. Other outputs are left out, because ONNX Runtime computes all
    that a session has, asked for or not.

    Attributes:
        model: the source.
        readout: its head, or the tensor of logits or probabilities.
        device: where to run.
    """

    model: Model
    readout: Readout
    device: Device
    _whole: Session | None = field(default=None, repr=False)
    _inputs: tuple[InputSpec, ...] | None = field(default=None, repr=False)

    @property
    def session(self) -> Session:
        """The session from the model's inputs.

        Raises:
            DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
        """
        if self._whole is None:
            cut = cut_at(self.model, self._tensors(), self.readout.joined)
            whole = open_part(self.model, cut, self.device, at_once=AT_ONCE)
            self._whole = in_rows(whole, self.readout, self.model.name, self._tensors())
        return self._whole

    def close(self) -> None:
        """Give back what the session holds, weights of the network among it; it is opened again where it is needed."""
        self._whole = None
        self.__dict__.pop("preparation", None)  # it holds the session too

    def is_whole(self, session: Session) -> bool:
        """Whether a session starts at the model's inputs."""
        return session is self._whole

    @property
    def main(self) -> str:
        """The tensor that is collected: the features, or the logits of a model without a head."""
        return self.readout.features if isinstance(self.readout, Head) else self.readout.logits

    @functools.cached_property
    def preparation(self) -> Preparation:
        """How images become the model's inputs: the same for all samples of a run."""
        return Preparation(self.model, output_of(self.readout), self.session)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What a data source has to fill."""
        if self._inputs is None:
            self._inputs = input_specs(self.session)
        return self._inputs

    def session_from(self, given: Mapping[str, np.dtype[Any]]) -> Session | None:
        """Return a session from tensors that are given, of some dtypes, to the logits.

        None if the logits are given; the whole session if nothing is, or nothing but the model's inputs.

        Raises:
            DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
        """
        if set(given) <= set(self.model.inputs):
            return self.session
        if self.readout.logits in given:
            return None
        cut = cut_between(self.model.proto, given, [self.readout.logits], self.readout.joined)
        return open_part(self.model, cut, self.device)

    def computed(self, names: Iterable[str]) -> list[str]:
        """Return those of some tensors that nodes compute, each once; the others are inputs or constants."""
        # one tensor can be the logits and the output
        made = (self.model.producers, self.readout.joined)
        return list(dict.fromkeys(name for name in names if any(name in each for each in made)))

    def _tensors(self) -> list[str]:
        names = [self.readout.logits, self.readout.output]
        if isinstance(self.readout, Head):
            names = [self.readout.features, *read_beside(self.model, self.readout), *names]
        return self.computed(names)


def in_rows(session: Session, scores: Readout | ClassOutput, name: str, needed: Iterable[str] | None = None) -> Session:
    """Return a session that gives several predictions a sample as rows; the same one where there is one prediction.

    Args:
        session: on a model.
        scores: what the model gives.
        name: of the model, for messages.
        needed: tensors that have to have a value for each position; the output that classifies by default.
    """
    if not scores.several:
        return session
    output = scores.output if isinstance(scores, Readout) else scores.name
    single = scores.binary if isinstance(scores, Readout) else scores.width == 1
    return PositionSession(session, scores.class_axis, needed or (output,), name, () if single else (output,))


def input_specs(session: Session) -> tuple[InputSpec, ...]:
    """What a data source has to fill, from the session's inputs."""
    return tuple(InputSpec(i.name, i.shape, i.dtype) for i in session.inputs)


def open_model(model: Model, device: Device) -> Session:
    """Open a model as it is.

    Raises:
        DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
    """
    # by its path: external data lie beside the file
    if model.path is not None:
        return open_session(model.path, model.name, device)
    return open_session(model.proto.SerializeToString(), model.name, device)


def open_part(
    model: Model, cut: ModelProto, device: Device, fixed_batch: int | None = None, at_once: int = 1
) -> Session:
    """Open a part of a model, which the caller gives away.

    Raises:
        DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
    """
    folder = real_places(model, cut)
    if not model.apart:
        serialized = cut.SerializeToString()
        del cut  # a copy of all weights: the session makes its own
        return open_session(serialized, model.name, device, folder=folder, fixed_batch=fixed_batch, at_once=at_once)
    parts = pieces(cut, model.apart)
    # from a file the session reads large weights once; as bytes, they would lie beside its own
    with contextlib.suppress(OSError), temporary_folder(None) as temporary:
        if folder is None:  # places of external data are relative to one
            path = temporary / "part.onnx"
            write_new(path, *parts)
            return open_session(path, model.name, device, fixed_batch=fixed_batch, at_once=at_once)
    return open_session(b"".join(parts), model.name, device, folder=folder, fixed_batch=fixed_batch, at_once=at_once)


STARTED = b"started\n"
"""What the child says when all of it is loaded, and nothing of the model is."""

# Isolated (-I), so that neither the current folder nor PYTHONPATH adds modules: the path is this process's own.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tna_onnx.extraction.sessions import main
main(sys.argv[2])
"""

# For the interpreter and its modules, which a cold disk may take long to give.
_START_SECONDS = 60.0


def open_source(source: ModelSource, options: ModelOptions) -> Model:
    """Read a model, after a child process has opened it if `options.isolate` says so.

    Raises:
        UsageError, UnsupportedModel: see `tna_onnx.graph.load.load_model`; or the child crashed, or took too long.
        DeviceError: the child does not start.
        RuntimeError: it met a bug of this package.
    """
    if options.isolate:
        _try(source, options)
    return load_model(source, options.model_limits)


def _try(source: ModelSource, options: ModelOptions) -> None:
    """Open a model in a child process.

    Raises:
        UnsupportedModel: the child crashed, or took too long.
        DeviceError: it does not start.
    """
    file = Path(source) if isinstance(source, (str, Path)) else None
    limits = options.model_limits
    words = {
        "path": None if file is None else str(file),
        "limits": dataclasses.asdict(limits),
        "head": options.head,
        "output_name": options.output_name,
        "output_kind": options.output_kind,
    }
    name = file or "the model in memory"
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter and this package
            [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path), json.dumps(words)],
            input=b"" if file else model_bytes(source),
            capture_output=True,
            check=False,
            timeout=_START_SECONDS + limits.isolate_seconds,
        )
    except subprocess.TimeoutExpired:
        raise _too_long(name, limits.isolate_seconds) from None
    if not done.stdout.startswith(STARTED):
        lines = done.stderr.decode("utf-8", "replace").split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), _ending(done.returncode))
        raise DeviceError(f"the child process of --isolate does not start ({sys.executable}: {reason})")
    if hasattr(signal, "SIGALRM") and done.returncode == -signal.SIGALRM:
        raise _too_long(name, limits.isolate_seconds)
    if done.returncode == INTERNAL_ERROR:
        raise RuntimeError(f"in the child process of --isolate:\n{done.stderr.decode('utf-8', 'replace')}")
    if done.returncode:
        raise UnsupportedModel(
            f"{name}: ONNX or ONNX Runtime crashed on it ({_ending(done.returncode)}, in the child process of "
            "--isolate); the file is damaged or hostile, and was not opened here"
        )


def _too_long(name: Path | str, seconds: float) -> UnsupportedModel:
    return UnsupportedModel(
        f"{name}: ONNX and ONNX Runtime did not open it within {seconds:g} seconds (in the child process of --isolate)"
        "; if it is sound, raise --model-limit isolate-seconds=NUMBER"
    )


def _ending(code: int) -> str:
    """Say how a process ended: by a signal, or with an exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code:#x}"


# What the parent process refuses the model for too, in words of its own, and what the machine lacks.
_REFUSED = (TnaError, MemoryError, OSError)


def main(words: str) -> None:
    """Open a model.

    Args:
        words: JSON with `path`, which is null for bytes on standard input; `limits`; and fields of `ModelOptions`.
    """
    given = json.loads(words)
    limits = ModelLimits(**given["limits"])
    source = sys.stdin.buffer.read() if given["path"] is None else Path(given["path"])
    # loaded before anything of the model is: what fails here is not the model's fault
    with contextlib.suppress(TnaError):
        runtime_version()
    os.write(1, STARTED)
    report = os.dup(2)
    _keep_to_itself(limits.isolate_seconds)
    try:
        _open(load_model(source, limits), given)
    except _REFUSED:
        pass
    except Exception:  # noqa: BLE001 - a bug, which the parent process reports
        os.write(report, traceback.format_exc().encode("utf-8", "replace"))
        sys.exit(INTERNAL_ERROR)


def _keep_to_itself(seconds: float) -> None:
    """Print nothing and leave no core file; end in time even if the parent process is gone."""
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with contextlib.suppress(ImportError, OSError):  # not on Windows
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process even in a loop of native code
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)


def _open(model: Model, given: dict[str, str | None]) -> None:
    checker_complaint(model.path or model.proto)
    # what one way is refused for says nothing about the next
    with contextlib.suppress(*_REFUSED):
        open_model(model, Device("cpu"))
    for readout in _readouts(model, given):
        with contextlib.suppress(*_REFUSED):
            _ = OpenModel(model, readout, Device("cpu")).session


def _readouts(model: Model, given: dict[str, str | None]) -> Iterator[Readout]:
    heads, _ = find_heads(model)
    yield from heads
    if not heads:
        with contextlib.suppress(*_REFUSED):
            yield find_readout(model, given["head"], given["output_name"], given["output_kind"])


class Runner:
    """A session whose inputs go by the samples' names; without one, an output is what the samples hold already."""

    def __init__(self, session: Session | None, names: Mapping[str, str] | None = None) -> None:
        self._session = session
        self._names = names
        self._closed = False

    def close(self) -> None:
        """Give back what the session holds; it runs nothing any more."""
        self._session = None
        self._closed = True

    def run(self, outputs: list[str], batch: Batch) -> list[NDArray[Any]]:
        """Run one batch.

        Raises:
            DataError: ONNX Runtime refuses the data.
        """
        if self._closed:
            raise RuntimeError("a session that has been closed cannot run")
        if self._session is None:
            return [batch[name] for name in outputs]
        if self._names is None:
            return self._session.run(outputs, batch)
        return self._session.run(outputs, {self._names[name]: array for name, array in batch.items()})
