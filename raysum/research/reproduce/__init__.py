"""The tables of the papers on any data. raysum trains the system of each row."""
