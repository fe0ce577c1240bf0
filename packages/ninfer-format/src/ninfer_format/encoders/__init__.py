"""Reference encoders: from values to the words of a format (formats specification, section 8)."""
