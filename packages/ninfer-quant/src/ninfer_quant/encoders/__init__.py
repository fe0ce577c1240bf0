"""Encoders over an array module: from binary32 values to words, the same on a CPU and a GPU.

They are pure functions of whole row blocks: how a matrix is cut into blocks changes no word. What
`ninfer_format.encoders` defines too gives the same words as there, bit for bit.
"""
