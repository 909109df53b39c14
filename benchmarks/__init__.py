"""Measurements of this project, each beside what it is compared with, and a soak test."""
