"""Layers of a model: weights on a device and the ops that use them. No architecture is named."""
