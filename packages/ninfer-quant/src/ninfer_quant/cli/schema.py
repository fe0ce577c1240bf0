"""Names and versions of the commands' JSON documents."""

SCHEMA = "ninfer-convert/1"
QUANT_SCHEMA = "ninfer-quant/1"
