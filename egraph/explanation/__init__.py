"""Explanations: why a node was fused, and why one was not."""
