"""The API for client programs: communicates with a server in any revision.

`client` has one method for each request, `sync` the same without `await`, `group` several servers as one. The
`connection` folder moves messages, negotiates, reconnects and retries. Opening a channel is left to
`toolpost.connect`.
"""
