"""HTTP libraries behind one small interface."""
