"""The click group of `toolpost`, to run commands in this process."""

from toolpost.cli.group import toolpost as command_group

__all__ = ["command_group"]
