"""The options of the daemon: declared, loaded, checked, retuned."""
