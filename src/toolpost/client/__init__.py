"""RING 2: the client. What a program uses to talk to a server, on any revision.

`client` has one method for each request, `sync` the same without `await`, `group` several servers as one. The
`connection` folder moves messages, negotiates, reconnects and retries. Opening a channel is left to
`toolpost.connect`.
"""
