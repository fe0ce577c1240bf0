"""Measures of a model's quality on text that it has not seen."""
