"""The command `toolpost`. Requires click and rich: `pip install 'toolpost[cli]'`."""
