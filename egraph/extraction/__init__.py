"""Choosing one e-node per e-class: posed, reduced, solved."""
