"""The measurements of the papers that are no ROUGE of summaries: each a function that returns a data frame."""
