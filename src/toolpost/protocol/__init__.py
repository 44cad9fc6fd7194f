"""The protocol without input or output. Bytes in, events out; no loop, socket, clock or log.

Read `methods`, `revisions`, `eras` and `connection`, in this order; the rest are tools that they, or the
transports, use.
"""
