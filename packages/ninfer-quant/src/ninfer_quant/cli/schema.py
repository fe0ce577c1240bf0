"""Name and version of the command's JSON documents."""

SCHEMA = "ninfer-convert/1"
