"""The message on an interruption names the files that changed since the command began, and no other."""

from __future__ import annotations

from pathlib import Path

import click

from tna_onnx.cli.terminal import interruption, watch


def test_changed_and_new_files_are_named(tmp_path: Path) -> None:
    old, changed, new = (tmp_path / name for name in ("old", "changed", "new"))
    old.write_text("1")
    changed.write_text("1")
    with click.Context(click.Command("test")) as ctx:
        assert interruption(ctx) == "Interrupted; no file was written."
        watch([old, changed, new, None], cache="features")
        changed.write_text("12")
        kept = " The features computed so far are kept in the cache."
        assert interruption(ctx) == f"Interrupted; {changed} is written.{kept}"
        new.touch()
        assert interruption(ctx) == f"Interrupted; {changed}, {new} are written.{kept}"
