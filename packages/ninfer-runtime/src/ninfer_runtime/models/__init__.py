"""Architectures: one folder each, found by the name that an artifact's text component gives."""
