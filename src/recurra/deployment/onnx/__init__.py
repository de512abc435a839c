"""The classifier as an ONNX graph: writing it, and computing with it."""
