"""How long models take, measured."""
