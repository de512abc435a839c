"""Predicting the files of a folder, one by one or on a cluster, in a way that goes on where it was killed."""
