"""The report of a run as one HTML page: settings, cost, scores, errors, and a comparison with a second run."""
