"""The command `toolpost`. It needs click and rich: `pip install 'toolpost[cli]'`."""
