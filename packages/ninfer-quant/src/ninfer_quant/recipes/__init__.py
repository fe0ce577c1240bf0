"""Recipes: which logical parameter gets which format, by which method."""
