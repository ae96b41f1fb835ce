"""Feature stores that someone has tampered with: right rows, computed again or read, or `TnaError`.

The manifest gets made-up values with a digest that fits, files are cut, exchanged, or replaced by pipes
and folders, and the checksums of an unfinished store get lines that nobody wrote.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz.mutate import mutated_bytes, mutated_json
from tna_onnx.extraction.store import find_stores, json_digest, labels_digest, open_store, read_stored

N, BATCH = 40, 5
LABELS = np.arange(N) % 3
X = np.random.default_rng(0).random((N, 4), np.float32)
KEY = {"labels_sha256": labels_digest(LABELS)}


def fill(folder: Path, stop: int = N) -> None:
    """Open or make a store, hold what it has against what was written, and go on."""
    with open_store(folder, KEY, LABELS, BATCH) as store:
        if store.done:
            assert np.array_equal(store.features[: store.done], X[: store.done]), "rows"
        for start in range(store.done, stop, BATCH):
            store.array((4,), X.dtype)[start : start + BATCH] = X[start : start + BATCH]
            store.finish_up_to(min(start + BATCH, N))


def _manifest(place: Path, random: Random) -> None:
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):  # nothing there that could be signed
        content = json.loads((place / "manifest.json").read_bytes())
        content.pop("sha256", None)
        made_up = json.loads(mutated_json(json.dumps(content).encode(), random))
        signed = {**made_up, "sha256": json_digest(made_up)}
        (place / "manifest.json").write_text(json.dumps(signed))


def _bytes(place: Path, random: Random) -> None:
    path = random.choice(sorted(each for each in place.iterdir() if each.is_file()))
    path.write_bytes(mutated_bytes(path.read_bytes(), random))


def _exchange(place: Path, random: Random) -> None:
    one, other = random.sample(sorted(each for each in place.iterdir() if each.is_file()), 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _replace(place: Path, random: Random) -> None:
    path = random.choice(sorted(place.iterdir()))
    if path.is_dir() and not path.is_symlink():
        return
    path.unlink()
    match random.randrange(3):
        case 0:
            path.mkdir()
        case 1:
            os.mkfifo(path)
        case _:
            pass


def _checksums(place: Path, random: Random) -> None:
    lines = [f"{random.choice(['0', 'ab', '-', 'é']) * random.choice([1, 32, 64])}\n"] * 3
    with (place / "checksums.txt").open("ab") as file:
        file.write(mutated_bytes("".join(lines).encode(), random))


_DAMAGES: tuple[Callable[[Path, Random], None], ...] = (_manifest, _bytes, _exchange, _replace, _checksums)


def case(k: int, seed: int, folder: Path) -> None:
    """Run one case by its number."""
    random = Random(f"{seed} {k}")
    cache = folder / "cache"
    fill(cache, random.choice([N, 10, 25]))
    (place,) = find_stores(cache)
    for _ in range(random.choice([1, 1, 2])):
        damage = random.choice(_DAMAGES)
        if all(each.is_file() for each in place.iterdir()):
            damage(place, random)
    try:
        if random.random() < 0.5:
            np.testing.assert_array_equal(read_stored(cache).features, X)
        else:
            fill(cache)
            np.testing.assert_array_equal(read_stored(cache).features, X)
    finally:
        shutil.rmtree(cache)
