"""What several operators of one run do between them; a run of one operator has none of it."""
