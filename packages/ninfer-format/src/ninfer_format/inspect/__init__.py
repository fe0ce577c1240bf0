"""What ``ninfer-inspect`` shows of an artifact, as data, as tables and as JSON."""
