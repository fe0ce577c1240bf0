"""Where the values of logical parameters come from."""
