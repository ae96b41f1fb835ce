"""Shim for a checkout: `python cli.py ...` is `tna-onnx ...`."""

from tna_onnx.cli import main

if __name__ == "__main__":
    main()
