"""What sequences leave behind for their next tokens."""
