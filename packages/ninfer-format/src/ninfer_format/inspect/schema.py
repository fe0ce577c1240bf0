"""Name and version of the JSON documents of ``ninfer-inspect``."""

SCHEMA = "ninfer-inspect/1"
