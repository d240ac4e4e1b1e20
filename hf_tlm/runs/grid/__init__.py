"""Many runs of one kind: grids of settings, searches, and how processes share them."""
