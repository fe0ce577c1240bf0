"""Methods: how the values of a parent object become the words of its format."""
