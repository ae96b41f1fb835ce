"""The formats of labelled samples: one row says what a format is recognised by and what opens it.

Paths are recognised by what is there; the first row that fits counts:

| format | what is there |
|---|---|
| `npz` | a file `.npz` |
| `npy` | a file `.npy`, or a folder with `.npy` files |
| `webdataset` | a file `.tar`, a folder with `.tar` files, or a pattern such as `shard-{000..004}.tar` |
| `table` | a file `.parquet`, `.arrow`, `.feather` or `.ipc`, a folder with such files, or one with `state.json`; |
| | and a file `.csv`, `.tsv`, `.json` or `.jsonl` where the model takes no images |
| `hdf5` | a file `.h5` or `.hdf5` |
| `manifest` | a file `.csv`, `.tsv`, `.json`, `.jsonl` or `.txt`, where the model's only input takes images |
| `folder` | a folder with none of the other files |
| `loader` | `loader.py:function`; never recognised, only named by the user |

Openers are named, not imported: the command line offers the formats without loading NumPy, and a run loads only the
source that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

__all__ = ["FORMATS", "ROWS", "Format", "Row"]

Format: TypeAlias = Literal["folder", "manifest", "npz", "npy", "webdataset", "table", "hdf5", "loader"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class Row:
    """One format.

    Attributes:
        opener: `module:function` in `tna_onnx.data.sources`; the function takes a path and a
            `tna_onnx.data.request.Request`, and returns a `tna_onnx.data.source.Source`.
        files: suffixes of its files.
        in_folder: endings of files that make a folder one of this format.
    """

    opener: str
    files: tuple[str, ...] = ()
    in_folder: tuple[str, ...] = ()


_TABLES = (".parquet", ".arrow", ".feather", ".ipc")

# In the order in which they are tried.
ROWS: dict[Format, Row] = {
    "npz": Row("arrays:open_arrays", files=(".npz",)),
    "npy": Row("npy:open_npy", files=(".npy",), in_folder=(".npy",)),
    "webdataset": Row("webdataset:open_webdataset", files=(".tar",), in_folder=(".tar",)),
    "table": Row("tables:open_table", files=_TABLES, in_folder=(*_TABLES, "state.json", "dataset_dict.json")),
    "hdf5": Row("hdf5:open_hdf5", files=(".h5", ".hdf5")),
    "manifest": Row("manifest:open_manifest", files=(".csv", ".tsv", ".json", ".jsonl", ".txt")),
    # What a folder is if none of the others fits.
    "folder": Row("folder:open_folder"),
    # Never recognised: code runs only when the user asks for it.
    "loader": Row("loader:open_loader"),
}
