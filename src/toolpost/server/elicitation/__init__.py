"""Asking the client in the middle of a call: forms, questions on parameters, replay."""
