"""Everything that knows ONNX graphs: loading, head finding, map nodes, rewriting."""
