"""Presets: configurations of the papers, a YAML each."""
