"""Other libraries' interfaces, one file each. Nothing here is imported until it is asked for by its own name."""
