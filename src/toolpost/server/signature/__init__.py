"""From the signature of a function to a JSON Schema, checked arguments and a result."""
