"""Changes to finished artifacts that encode nothing: the payload is copied byte for byte.

Each change makes a new artifact with an id of its own, and leaves the old one as it is.
"""
