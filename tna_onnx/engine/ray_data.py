"""`--engine ray`: features by a pipeline of Ray Data, on a cluster or on this machine.

    slices -> map_batches(_tables) in tasks -> map_batches(TableExtractor) in actors -> write_parquet

A plain connection tries the cluster first: `ray.init` may wait for minutes and hear no signal.
"""

import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tna_onnx.data.foreign import optional
from tna_onnx.data.sources.feature_files import FeatureFolder
from tna_onnx.data.sources.slices import Slice
from tna_onnx.errors import DeviceError, TnaError, UsageError
from tna_onnx.extraction.extractor import TableExtractor

OPTIONS = ("accelerator_type", "concurrency", "memory", "num_cpus", "num_gpus")
"""Words of `Dataset.map_batches` that can be passed on."""

_PATIENCE = 10.0  # seconds that a cluster may take to answer
_PURPOSE = "--engine ray"
_LOG_LEVEL = "RAY_BACKEND_LOG_LEVEL"
_FILE_ROWS = 2**12  # at least, of a file that is written: engines read few large files faster than many small ones


def check_ray(engine: str, options: Mapping[str, Any] | None) -> str:
    """Return the address to connect to, behind which something answers; `local` where Ray is to be started.

    `engine`: `ray:ADDRESS`; `ray` takes the cluster of RAY_ADDRESS, else the Ray that runs on this machine, else starts
    one. `options`: words for `map_batches`.
    """
    ray = optional("ray", "ray", _PURPOSE)
    optional("ray.data", "ray", _PURPOSE)
    unknown = sorted(set(options or {}) - set(OPTIONS))
    if unknown:
        raise UsageError(f"ray option '{unknown[0]}' is not known; expected {', '.join(OPTIONS)}")
    if ray.is_initialized():
        return "auto"
    address = engine.partition(":")[2] or os.environ.get("RAY_ADDRESS") or _running() or "local"
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return address
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise DeviceError(
            f"{address}: no cluster answers ({error}); check the address, or name another: --engine ray:ADDRESS, "
            "ray:local; a Ray of this machine that has died is cleared away by `ray stop`"
        ) from error
    return address


def _running() -> str | None:
    """Return the address that a Ray on this machine has written to its file; that Ray may have been killed since."""
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp/ray")  # noqa: S108 - Ray's own place
    with suppress(OSError):
        return (folder / "ray_current_cluster").read_text(encoding="utf-8").strip()
    return None


def features_by_ray(
    slices: Sequence[Slice],
    extractor: TableExtractor,
    folder: FeatureFolder,
    address: str,
    options: Mapping[str, Any] | None,
) -> None:
    """Connect to Ray, compute features of slices, and write them."""
    import ray  # noqa: PLC0415 - optional

    with _connected(ray, address):
        before = ray.data.DataContext.get_current()
        context = before.copy()
        context.enable_progress_bars = False  # two displays in one terminal overwrite each other
        context.raise_original_map_exception = True
        ray.data.DataContext._set_current(context)
        try:
            # a CPU that is kept for writing is one that no network runs on
            _mapped(ray, slices, extractor, options or {}).write_parquet(
                folder.root,
                filesystem=folder.system,
                min_rows_per_file=_FILE_ROWS,
                ray_remote_args={"num_cpus": 0},
            )
        except TnaError as error:
            raise _cause(error) from None
        except ray.exceptions.RayError as error:
            raise _cause(error) from error
        finally:
            ray.data.DataContext._set_current(before)


def _mapped(ray: Any, slices: Sequence[Slice], tables: TableExtractor, options: Mapping[str, Any]) -> Any:
    """Return the pipeline: a data set of Ray that is computed where it is written."""
    words = dict(options)
    # without a GPU both are one step of one worker; with other shares of a CPU, workers would leave none to read with
    reading: dict[str, Any] = {}
    if "num_gpus" not in options:
        words.setdefault("num_cpus", 1)
        reading = {"num_cpus": words["num_cpus"]}
    if "concurrency" not in words:  # as many actors as the cluster has room for, now and later
        words["compute"] = ray.data.ActorPoolStrategy(min_size=1)
    parts = [{"slice": pickle.dumps(part)} for part in slices]
    samples = ray.data.from_items(parts, override_num_blocks=len(parts))
    read = samples.map_batches(_tables, batch_size=None, **reading)
    # made in each actor, whose session stays open
    words["fn_constructor_args"] = [tables.extractor, tables.writer]
    return read.map_batches(TableExtractor, batch_size=None, batch_format="pyarrow", **words)


def _tables(batch: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the tables of slices; a task of Ray."""
    for part in batch["slice"]:
        yield from pickle.loads(part).tables()  # noqa: S301 - of the driver


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Connect to Ray, and leave it afterwards; signals and logs stay as they were."""
    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # warns that its bars are off
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # of C++: an error line says for each pool of actors what its driver should keep, which it does
    quiet = _LOG_LEVEL not in os.environ
    os.environ.setdefault(_LOG_LEVEL, "fatal")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield
    except ConnectionError as error:
        raise DeviceError(f"{address}: the cluster has gone ({error}); run again") from error
    finally:
        ray.shutdown()
        if quiet:
            del os.environ[_LOG_LEVEL]
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _cause(error: BaseException) -> TnaError:
    """Return what ended a task, as an error of ours: Ray makes a class for each, whose text is a traceback."""
    link: BaseException | None = error
    while link is not None:
        inner = getattr(link, "cause", None)  # of Ray's own classes, which are of ours too
        if inner is None and isinstance(link, TnaError):
            return link
        link = inner or link.__cause__
    *_, last = type(error).__name__, *str(error).strip().splitlines()
    return DeviceError(f"Ray has given up: {last}")
