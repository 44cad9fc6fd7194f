"""The programs that are measured: one for each target and transport, started as processes of their own."""
