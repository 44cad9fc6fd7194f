"""An event loop that cannot watch descriptors, like that of Windows: all I/O runs in threads."""

import asyncio


class BlindLoop(asyncio.SelectorEventLoop):
    """Watches its own sockets, and rejects all other descriptors."""

    def add_reader(self, fd, callback, *args):
        raise NotImplementedError  # as the loop of Windows does

    def add_writer(self, fd, callback, *args):
        raise NotImplementedError  # as the loop of Windows does
