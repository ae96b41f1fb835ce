"""Settings from a file and from the environment: each stands for a flag that was not given.

The first of these that has a setting wins:

    1. flag
    2. environment
    3. `--config` file
    4. `[tool.tna-onnx]` of a pyproject.toml
    5. default

In a file the keys are the names of the flags, with dashes or underscores. At the top of the file a key applies to every
command that has the flag, in a table such as `[calibrate]` to one command. In the environment `TNA_ONNX_MAP` applies to
every command, `TNA_ONNX_CALIBRATE_MAP` to one. A setting for one command wins over a setting for all. Paths in a file
are relative to that file.

The pyproject.toml is the nearest one with such a table, in the working folder or above it, up to the root of the
repository (the folder with `.git`) or the home folder, whichever comes first. If neither lies above the working folder,
only the working folder counts.
"""

from tna_onnx.cli.config.apply import config_options, setting_sources

__all__ = ["config_options", "setting_sources"]
