"""Files changed at random: each is refused in one line, or read as an independent simple reader reads it."""
