"""Skills: their rules, their front matter, and the folders that hold them. Shared by server and client."""
