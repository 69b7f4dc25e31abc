"""The reproduction of the paper as a client of the library: report, study, datasets, theory."""
