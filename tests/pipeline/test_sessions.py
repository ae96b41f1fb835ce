"""A run opens its source model once, and sends every sample through the network once."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import TILTED
from tna_onnx.extraction import opened_samples as given
from tna_onnx.extraction import sessions
from tna_onnx.runtime import Session


class Sessions:
    """Counts the sessions that are opened, by what they are opened on, and the samples that each has run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.samples: Counter[str] = Counter()
        for module, kind in ((sessions, "source"), (given, "written")):
            monkeypatch.setattr(module, "open_session", self._counted(module.open_session, kind))

    def _counted(self, real: Any, kind: str) -> Any:
        def opened(*words: Any, **named: Any) -> Session:
            session: Session = real(*words, **named)
            self.opened.append(kind)
            compute = session._compute

            def counted(outputs: Any, feeds: Any) -> Any:
                self.samples[kind] += len(next(iter(feeds.values())))
                return compute(outputs, feeds)

            session._compute = counted  # type: ignore[method-assign]
            return session

        return opened


def test_with_held_out_data(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = Sessions(monkeypatch)
    tna_onnx.calibrate(small.model, small.calib, eval=small.test, output=tmp_path / "o.onnx", details=True, **TILTED)
    assert count.opened == ["source", "written"]
    # both data sets, once: the collection begins with the batch that checked the head, of which three samples are
    # run alone and all in parts; another batch from all over the data, and that in parts
    assert count.samples == {"source": 1500 + 1500 + 3 + 64 + 2 * 64, "written": 512}


def test_one_session_is_open_at_a_time(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device two may not fit beside each other; a second output has both files run."""
    alive: weakref.WeakSet[Session] = weakref.WeakSet()
    most = 0
    for module in (sessions, given):
        real = module.open_session

        def opened(*words: Any, real: Any = real, **named: Any) -> Session:
            nonlocal most
            gc.collect()
            assert not alive
            session: Session = real(*words, **named)
            alive.add(session)
            most += 1
            return session

        monkeypatch.setattr(module, "open_session", opened)
    proto = onnx.load(small.model)
    proto.graph.node.append(onnx.helper.make_node("ArgMax", [proto.graph.output[0].name], ["label"], axis=1))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("label", onnx.TensorProto.INT64, None))
    onnx.save(proto, tmp_path / "two.onnx")
    words = {**TILTED, "output_name": proto.graph.output[0].name}
    tna_onnx.calibrate(tmp_path / "two.onnx", small.calib, eval=small.test, output=tmp_path / "o.onnx", **words)
    assert most == 3  # to collect, the written file, and the source with all its outputs
