"""Calibration: what the inputs of a model's projections look like while it reads text."""
