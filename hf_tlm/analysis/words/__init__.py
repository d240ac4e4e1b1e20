"""Task-influential words (ISS, Table 6)."""
