"""Operations on tensors, one folder each.

The docstring of an op's public function is its contract, `reference.py` beside it the meaning and
the CPU implementation. Another device adds its module to the folder and its name to the registry.
"""
