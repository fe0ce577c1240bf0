"""The container: header, JSON directory and logical payload over one or more files."""
