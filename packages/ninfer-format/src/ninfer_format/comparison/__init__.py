"""What is different between two artifacts."""
