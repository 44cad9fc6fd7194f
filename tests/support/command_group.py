"""The command line in this process, where no program has to be started: the group that `toolpost` runs."""

from toolpost.cli.group import toolpost as command_group

__all__ = ["command_group"]
