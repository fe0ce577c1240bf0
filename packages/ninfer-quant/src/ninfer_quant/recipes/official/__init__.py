"""The built-in recipes, one file each."""
