"""Encoders of the paper: images in, features out."""
