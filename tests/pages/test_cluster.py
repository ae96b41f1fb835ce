"""The Kubernetes objects of docs/how-to/cluster.md parse, and hold together."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.pages.documents import blocks
from tests.support import cli
from tna_onnx.cli.group import group

yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    page = ROOT / "docs/how-to/cluster.md"
    texts = [block.text for block in blocks(page) if block.language == "yaml"]
    return {each["kind"]: each for text in texts for each in yaml.safe_load_all(text)}


def test_the_entry_point_is_a_command_of_this_version(objects: dict[str, dict[str, Any]]) -> None:
    program, name, *words = shlex.split(objects["RayJob"]["spec"]["entrypoint"])
    assert (program, name) == ("tna-onnx", "features")
    context = group.commands[name].make_context(name, words)
    assert context.params["engine"] == "ray"


def test_head_and_workers_see_the_same_disk(objects: dict[str, dict[str, Any]]) -> None:
    cluster = objects["RayJob"]["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    claim = objects["PersistentVolumeClaim"]["metadata"]["name"]
    images = set()
    for each in groups:
        pod = each["template"]["spec"]
        (container,) = pod["containers"]
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/shared"}]
        assert all(isinstance(value, str) for value in each["rayStartParams"].values())  # as KubeRay wants them
        images.add(container["image"])
    assert len(images) == 1
    assert objects["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_page_names_every_engine() -> None:
    text = (ROOT / "docs/how-to/cluster.md").read_text(encoding="utf-8")
    refusal = cli("features", "m.onnx", "--data", "d.npz", "--cache", "c", "--engine", "spark").output
    assert "local, processes:NUMBER, ray or ray:HOST:PORT" in refusal
    assert all(f"| `{word}` |" in text for word in ("local", "processes:N", "ray", "ray:HOST:PORT"))
