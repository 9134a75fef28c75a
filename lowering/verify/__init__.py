"""The optimized model against the original, by their numbers."""
