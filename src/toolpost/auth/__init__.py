"""Authorization from both ends: how a client gets tokens, and how a server checks them.

Crypto, keys and signatures are joserfc's, which is loaded where it is needed; the sequence is ours.
"""
