"""Limits and waits as numbers: contract tests do not read them from the code."""

# --------------------------------------------------------------------- messages

MAX_LINE = 4 * 1024 * 1024
"""The longest message over stdio, in bytes."""

# --------------------------------------------------------------------- clients

RECONNECT_FIRST = 0.5
"""Seconds until a client reconnects; each further wait is longer."""
RECONNECT_LONGEST = 30.0
RECONNECT_TRIES = 5
MAX_RETRIES = 5
"""Retries of a call that is safe to repeat."""
MAX_CACHE_ENTRIES = 512
MAX_CACHE_AGE = 86400.0
MAX_WAITING = 1000
"""Notifications queued for a slow callback."""
CLOSE_PATIENCE = 5.0
LOST_PATIENCE = 1.0
SERVER_PATIENCE = 5.0
MAX_PAGES = 1000

# --------------------------------------------------------------------- servers

MAX_ANSWERS = 256
"""Answers in one call."""
MAX_URL_ELICITATIONS = 256
MAX_COMPLETIONS = 100

# --------------------------------------------------------------------- HTTP

MAX_HEADERS = 65536
MAX_PIPELINED = 8
MAX_REDIRECTS = 5
MAX_QUOTE = 300
"""Bytes of an unexpected response that an error quotes."""
HEAD_SECONDS = 30.0
STALLED_SECONDS = 60.0
SLOW_SECONDS = 30.0
SLOW_BYTES = 16384

# --------------------------------------------------------------------- authorization

WELL_KNOWN = "/.well-known/oauth-protected-resource"
MAX_DOCUMENT = 262144
"""Bytes of metadata, keys or a response of an authorization server."""

# --------------------------------------------------------------------- the command line, recordings

MANY_PARAMETERS = 12
LONG_DESCRIPTION = 1024
MANY_TOOLS = 128
MASKED = "<masked>"
TAPE_FORMAT = 1
