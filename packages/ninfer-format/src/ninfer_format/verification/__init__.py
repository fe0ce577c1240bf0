"""Checking everything about an artifact: structure, every stored word, and known hashes."""
