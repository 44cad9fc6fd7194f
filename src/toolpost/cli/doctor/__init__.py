"""`toolpost doctor`: diagnoses a server."""
