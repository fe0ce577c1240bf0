"""The command ``ninfer-convert``."""
