"""``patcher doctor``: what is installed, what is patched, what is wrong, and how to mend it."""
