"""Models as `compare` is given them, each with a name of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tna_onnx.errors import UsageError
from tna_onnx.graph.options import ModelSource

__all__ = ["GivenModel", "named_models", "position_of"]


@dataclass(frozen=True, eq=False)
class GivenModel:
    """A model as given, its name in reports, and its path if it has one."""

    source: ModelSource
    name: str
    path: Path | None


def named_models(models: Sequence[ModelSource] | Mapping[str, ModelSource]) -> list[GivenModel]:
    """Give each model a name of its own.

    Raises:
        UsageError: fewer than two models, or not a list of them.
    """
    # texts and bytes are sequences too: of letters and numbers
    if isinstance(models, (str, bytes, Path)) or not isinstance(models, (Sequence, Mapping)):
        raise UsageError(f"expected a list of models, got {type(models).__name__}")
    if len(models) < 2:
        raise UsageError(f"compare needs at least two models, got {len(models)}; `evaluate` measures one")
    sources = list(models.values() if isinstance(models, Mapping) else models)
    paths = [Path(source) if isinstance(source, (str, Path)) else None for source in sources]
    names = list(models) if isinstance(models, Mapping) else _names(paths)
    return [GivenModel(*each) for each in zip(sources, names, paths, strict=True)]


def _names(paths: Sequence[Path | None]) -> list[str]:
    """Return the names of files, with as many folders as tell them apart; equal paths are numbered.

    >>> _names([Path("a/m.onnx"), Path("b/m.onnx"), Path("n.onnx"), None, Path("n.onnx")])
    ['a/m.onnx', 'b/m.onnx', 'n.onnx (1)', 'model in memory', 'n.onnx (2)']
    """
    whole = [("model in memory",) if path is None else path.absolute().parts for path in paths]
    names = []
    for parts in whole:
        # equal paths cannot be told apart by folders: they are numbered below
        rivals = {other for other in whole if other != parts}
        depth = next(d for d in range(1, len(parts) + 1) if all(other[-d:] != parts[-d:] for other in rivals))
        names.append(Path(*parts[-depth:]).as_posix())
    return [f"{name} ({names[: k + 1].count(name)})" if names.count(name) > 1 else name for k, name in enumerate(names)]


def position_of(baseline: str | int, given: Sequence[GivenModel]) -> int:
    """Find the baseline: the first model of that name, else of that path, else the one at that position from 1.

    Raises:
        UsageError: there is none.
    """
    # names before positions: a file may be called 2
    word = str(baseline)
    for k, g in enumerate(given):
        if word == g.name:
            return k
    for k, g in enumerate(given):
        if g.path is not None and (word == g.path.name or Path(word).absolute() == g.path.absolute()):
            return k
    if word.isdecimal() and 1 <= int(word) <= len(given):
        return int(word) - 1
    raise UsageError(
        f"baseline '{baseline}' is none of the models; expected {', '.join(g.name for g in given)}, or a position "
        f"from 1 to {len(given)}"
    )
