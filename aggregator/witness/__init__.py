"""The program of a witness: cosign the log of models of another organisation's fleet, or refuse it."""
