"""How long models and operators take on this machine."""
