"""Tables of bad input, one file per subject; the tests beside this package give it to recipes and count it."""
