"""The commands of ``fdl local``, one a file."""
