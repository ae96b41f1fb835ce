"""The engine of a Ray cluster (`--engine ray[:ADDRESS]`): Ray Core actors, each with one CPU or one GPU of Ray's count.

Ray carries places of chunks to the actors and what `of` returns back, and no samples. Ray Data would, and does not keep
their order by default.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import textwrap
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tna_onnx.data.optional import optional
from tna_onnx.engine.protocol import S, T, add_neighbours
from tna_onnx.engine.staying import Staying
from tna_onnx.engine.threads import stay_on_one_thread, worker_threads
from tna_onnx.engine.workers import LostWorker, attempted, map_on
from tna_onnx.errors import DeviceError, UsageError
from tna_onnx.runtime import allowed_cores, share_cores

__all__ = ["OnRay"]

_SECONDS = 10.0  # to reach the head node: Ray itself tries for minutes

_WIDTH = 200  # of a reason in a message: Ray adds general advice

_OBJECT_STORE = 100 * 2**20  # bytes; Ray's least is 75 MiB, its default 30 % of the memory


@dataclass(frozen=True)
class OnRay:
    """An engine on a cluster.

    Attributes:
        address: HOST:PORT of the head node; empty for the cluster of RAY_ADDRESS or of this machine, else one that is
            started for the run.

    Raises:
        UsageError: Ray is not installed, or the address is none.
    """

    address: str = ""

    def __post_init__(self) -> None:
        # a run can be submitted to the cluster: the store must be in reach of this process too
        if self.address and not re.fullmatch(r"[^/\s:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", self.address):
            raise UsageError(
                f"engine 'ray:{self.address}': expected ray:HOST:PORT, the address of the head node that `ray start` "
                "prints; start this command on a machine of the cluster"
            )
        _ray()

    def map_chunks(self, of: Callable[..., T], chunks: Iterable[tuple[Any, ...]]) -> Generator[T, None, None]:
        """Yield of(*chunk_1), of(*chunk_2), ...; see `Engine`.

        Raises:
            DeviceError: the cluster cannot be reached, or has no CPU or GPU.
        """
        ray = _ray()
        with _connected(ray, self.address):
            kind = "GPU" if getattr(of, "needs_gpu", False) else "CPU"
            count = _count(ray, kind)
            yield from map_on(lambda: _RayWorker(ray, of, kind), count, chunks)

    def sum_chunks(self, of: Callable[..., S], chunks: Iterable[tuple[Any, ...]]) -> S:
        """Return of(*chunk_1) + of(*chunk_2) + ...; see `Engine`."""
        return add_neighbours(self.map_chunks(of, chunks))

    @contextlib.contextmanager
    def staying(self) -> Iterator[Staying]:
        """Give an engine of one actor a CPU that lasts for a block, and so do they.

        Raises:
            DeviceError: the cluster cannot be reached, or has no CPU.
        """
        ray = _ray()
        with _connected(ray, self.address):
            staying = Staying(lambda of: _RayWorker(ray, of, "CPU"), _count(ray, "CPU"))
            try:
                yield staying
            finally:
                staying.close()


def _count(ray: Any, kind: str) -> int:
    # what is free now says little: an actor that has just ended, or another job, may hold the rest for a moment
    count = int(ray.cluster_resources().get(kind, 0))
    if not count:
        raise DeviceError(f"the Ray cluster has no {kind}; start machines that have one")
    return count


class _RayWorker:
    """One actor."""

    fresh = True

    def __init__(self, ray: Any, of: Callable[..., Any], kind: str) -> None:
        self._ray = ray
        resources = {"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}
        # it is replaced here, where it is known which chunk it had
        threads = {"env_vars": worker_threads(_workers_beside(kind))}
        remote = ray.remote(max_restarts=0, max_task_retries=0, runtime_env=threads, **resources)(_Actor)
        self._actor = remote.remote(of, Path.cwd(), kind)

    def ready(self) -> Future[Any]:
        """Return a future that is done when the actor is there; see `Worker`."""
        return self._watched(self._actor.ready.remote())

    def give(self, chunk: tuple[Any, ...]) -> Future[Any]:
        """Start on a chunk; see `Worker`."""
        return self._watched(self._actor.run.remote(chunk))

    def take(self, of: Callable[..., Any]) -> Future[Any]:
        """Give it another function; see `Reusable`."""
        return self._watched(self._actor.take.remote(of))

    def stop(self, *, at_once: bool) -> None:  # noqa: ARG002 - Ray ends an actor in one way
        """End it; see `Worker`."""
        self._ray.kill(self._actor)

    def join(self) -> None:
        """Return at once: Ray sees to it that it ends."""

    def _watched(self, ref: Any) -> Future[Any]:
        result: Future[Any] = Future()
        ref.future().add_done_callback(lambda done: self._hand_over(done, result))
        return result

    def _hand_over(self, done: Future[Any], result: Future[Any]) -> None:
        error = done.exception()
        failures = self._ray.exceptions
        if error is None:
            result.set_result(done.result())
        elif isinstance(error, failures.RayError) and not isinstance(error, failures.RayTaskError):
            result.set_exception(LostWorker(_last_line(error)))
        else:
            result.set_exception(error)


class _Actor:
    """What runs in a worker process of Ray."""

    def __init__(self, of: Callable[..., Any], folder: Path, kind: str) -> None:
        # relative paths mean what they mean to the driver; where its folder is not there, absolute ones still do
        with contextlib.suppress(OSError):
            os.chdir(folder)
        share_cores(_workers_beside(kind))
        self._of = of

    def ready(self) -> None:
        """Say that it is there."""

    def take(self, of: Callable[..., Any]) -> None:
        """Compute with another function from now on."""
        self._of = of

    def run(self, chunk: tuple[Any, ...]) -> Any:
        """Compute a chunk."""
        stay_on_one_thread()
        return attempted(self._of, chunk)


def _workers_beside(kind: str) -> int:
    """Return how many workers the machine of this process has at most, this one included."""
    ray = _ray()
    own = ray.get_runtime_context().get_node_id()
    counts = [int(node["Resources"].get(kind, 1)) for node in ray.nodes() if node["NodeID"] == own]
    return max(1, *counts)


def _ray() -> Any:
    return optional("ray", "ray", "--engine ray")


@contextlib.contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Connect to the cluster for a block; a connection that the program has already is used, and stays."""
    if ray.is_initialized():
        yield
        return
    if address:
        _reach(address)
    with _own_signals():
        try:
            _connect(ray, address)
        except Exception as error:
            where = address or "this machine"
            raise DeviceError(f"the Ray cluster at {where} cannot be used: {_last_line(error)}") from error
    # Ray tells of workers that are lost on standard output, which is for results
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    # what workers print is no result, and what fails is raised here
    silent = {"configure_logging": False, "log_to_driver": False}
    try:
        ray.init(address=address or "auto", **silent)
    except ConnectionError:
        if address or "RAY_ADDRESS" in os.environ:
            raise
        # a cluster that a run starts for itself tells nobody about it
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        alone = {"num_cpus": allowed_cores(), "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        ray.init(address="local", **alone, **silent)


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
    except (OSError, OverflowError) as error:
        raise DeviceError(f"the Ray cluster at {address} cannot be reached ({error}); check the address") from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handler of SIGTERM: Ray sets its own, which ends the process with another exit code."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return textwrap.shorten((lines or [type(error).__name__])[-1], _WIDTH, placeholder=" ...")
