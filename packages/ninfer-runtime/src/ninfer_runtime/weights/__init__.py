"""Where layers get their weights from: a host's numbers, an artifact's words, or random words."""
