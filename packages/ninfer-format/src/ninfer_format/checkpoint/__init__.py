"""Lazy readers of source checkpoints."""
