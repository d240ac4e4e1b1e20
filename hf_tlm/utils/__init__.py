"""What everything else stands on: files, locks, seals, numbers and texts that are checked."""
