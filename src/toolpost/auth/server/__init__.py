"""Authorization of a server: verify tokens, and refuse requests without valid ones."""
