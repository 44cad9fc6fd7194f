"""OAuth for both sides: a client gets tokens, a server checks them.

joserfc does the cryptography. It is loaded when it is needed.
"""
