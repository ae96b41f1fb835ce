"""The command line: parse, call one function, show. No arithmetic."""

import contextlib
import os
import sys

from tna_onnx.cli.process import ended, loading
from tna_onnx.errors import INTERNAL_ERROR, INTERRUPTED, DeviceError, ResultError

__all__ = ["main"]


def main() -> None:
    """Run `tna-onnx`. The exit code is that of the error's class; an unexpected error ends with INTERNAL_ERROR."""
    loading()
    from tna_onnx.cli.process import resource_error

    try:
        from tna_onnx.cli.command import group
        from tna_onnx.cli.process import drop, print_error
    except ImportError as error:
        missing = resource_error(error)
        if missing is None:
            raise
        print(f"Error: {missing}", file=sys.stderr)  # noqa: T201 - `print_error` may be what could not be imported
        sys.exit(missing.exit_code)

    out_of_memory = f"Error: {resource_error(MemoryError())}\n".encode()  # while there is room for it
    try:
        group(prog_name="tna-onnx")
    except KeyboardInterrupt as error:  # the group reports one inside a command; this one came before or after it
        sys.exit(getattr(error, "exit_code", INTERRUPTED))
    except OSError as error:  # commands turn theirs into other errors, so this is the help that could not be printed
        drop(sys.stdout)
        print_error(f"Error: standard output: cannot be written: {error.strerror}")
        sys.exit(ResultError.exit_code)
    except MemoryError:  # outside of a command, which tells such errors itself, or while it told one
        with contextlib.suppress(OSError):
            os.write(2, out_of_memory)
        sys.exit(DeviceError.exit_code)
    except Exception:  # noqa: BLE001 - a bug must not end with the exit code of a documented error
        import traceback

        print_error(f"{traceback.format_exc()}Error: this is a bug in tna-onnx, please report it")
        sys.exit(INTERNAL_ERROR)
    finally:
        ended()
