"""What operators see: logs and notifications."""
