"""`python -m tna_onnx` is `tna-onnx`."""

from tna_onnx.cli import main

if __name__ == "__main__":
    main()
