"""What is known of any ONNX model: names, domains, tensors, well-formedness."""
