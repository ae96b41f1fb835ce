"""Tests of `tna_onnx.data`, on real files."""
