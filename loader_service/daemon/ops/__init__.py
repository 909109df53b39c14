"""Logs and notifications, for whoever operates a daemon."""
