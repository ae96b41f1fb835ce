"""Tests of `tna_onnx.graph`, on real files run with ONNX Runtime."""
