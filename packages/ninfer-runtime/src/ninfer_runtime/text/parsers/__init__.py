"""Parsers of generated text. All of them give the same result for any partition of the text."""
