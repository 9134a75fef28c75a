"""Models in and out of files."""
