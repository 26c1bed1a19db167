"""What things cost, measured against the other ways of doing them in one run."""
