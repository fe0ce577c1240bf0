"""The commands ``ninfer`` and ``ninfer-perplexity``."""
