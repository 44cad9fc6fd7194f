"""The edges: each transport makes channels, and knows neither servers nor clients."""
