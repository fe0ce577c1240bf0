"""Speed of single ops, beside what the device can do at most."""
