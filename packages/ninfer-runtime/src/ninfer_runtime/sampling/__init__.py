"""Choosing the next token: parameters, the processed distribution, random numbers.

Import from the modules: this one stays empty so that a command's help needs no NumPy.
"""
