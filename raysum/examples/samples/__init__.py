"""Clusters to begin with, written for raysum: the source `samples` of prepare and summarize."""
