"""Recalibrate a trained ONNX classifier."""

__version__ = "0.1.0"
