"""Import paths of Trinity-RFT's helpers, for files that were written for it."""

from trinity.compat import install_import_hook

install_import_hook()  # the modules are found by the tables there
