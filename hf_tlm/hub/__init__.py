"""Cards and, later in the pipeline, everything that talks to the Hub."""
