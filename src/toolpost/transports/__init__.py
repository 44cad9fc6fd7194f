"""The transports: each one creates channels, and knows neither servers nor clients."""
