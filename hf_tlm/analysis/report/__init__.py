"""A run as one page for a browser: what it was, its cost, scores and errors, and where another is better."""
