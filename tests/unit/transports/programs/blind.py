"""An event loop that cannot watch descriptors, like the one of Windows: everything goes through threads."""

import asyncio


class BlindLoop(asyncio.SelectorEventLoop):
    """Watches its own sockets, and rejects all other descriptors."""

    def add_reader(self, fd, callback, *args):
        raise NotImplementedError  # as the loop of Windows does

    def add_writer(self, fd, callback, *args):
        raise NotImplementedError  # as the loop of Windows does
