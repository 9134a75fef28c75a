"""What operators take on this machine: works of an e-graph, timed one by one, in a table that prices go by."""
