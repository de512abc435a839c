"""Independent, naive implementations that the library is held against."""
