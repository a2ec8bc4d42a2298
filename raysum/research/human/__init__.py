"""Human evaluation: sheets for judges, blinded and seeded, and the analysis of what they filled in."""
