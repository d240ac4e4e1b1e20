"""Tables of what recipes have to refuse, one subject a file: the tests beside them give it to recipes and count it."""
