"""What a server offers by the official extensions for skills and apps."""
