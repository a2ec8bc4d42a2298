"""One family of encoder-decoders by layer mix, and the systems beside it; papers and codes: ../presets/README.md."""
