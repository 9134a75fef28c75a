"""Symbolic types, sizes and small integer contents of every value of a model."""
