"""RING 2: what a program uses to talk to a server, on any revision.

`client` has one method for each thing that can be asked, `sync` the same without `await`. `link` moves the
messages, `negotiate` finds out what the server speaks, `answer` answers what the server asks. How a channel
is opened is not known here: that is the business of `toolpost.connect`.
"""
