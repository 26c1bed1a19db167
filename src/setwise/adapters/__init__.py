"""Other libraries' interfaces, one file each. Each is imported only by its own name."""
