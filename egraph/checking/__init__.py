"""Whether a rule is true: samples, trials and comparisons."""
