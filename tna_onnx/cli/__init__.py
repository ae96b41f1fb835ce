"""The command line: parse, call one function, show. No arithmetic."""

from __future__ import annotations

import sys
import traceback

from tna_onnx.cli.signals import loaded, loading

__all__ = ["main"]

# EX_SOFTWARE of sysexits.h; 1 would look like a missed gate.
_INTERNAL = 70


def main() -> None:
    """Run `tna-onnx`; the exit code is that of the error family, or 70 for an error that is none of ours."""
    loading()
    from tna_onnx.cli.channels import ResultError, complain, drop  # noqa: PLC0415 - click loads only when a command runs
    from tna_onnx.cli.commands import group  # noqa: PLC0415

    try:
        group(prog_name="tna-onnx")
    except KeyboardInterrupt:  # outside of a command
        sys.exit(130)
    except OSError as error:  # commands let none through: the help could not be printed
        drop(sys.stdout)
        complain(f"Error: standard output: cannot be written: {error.strerror}")
        sys.exit(ResultError.exit_code)
    except Exception:  # noqa: BLE001 - whatever it is, its exit code must not look like one of the documented ones
        complain(f"{traceback.format_exc()}Error: this is a bug in tna-onnx, please report it")
        sys.exit(_INTERNAL)
    finally:
        loaded()
