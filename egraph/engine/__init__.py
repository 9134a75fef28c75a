"""The e-graph: rules, facts, and saturation in egglog."""
