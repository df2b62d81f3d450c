"""Where a model lives, in bytes: cache layout, workspace, blocks."""
