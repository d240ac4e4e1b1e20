"""Utilities that all other packages use: files, locks, seals, checks of options, and texts."""
