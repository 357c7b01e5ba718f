"""Import paths of Trinity-RFT's manager, for files that were written for it."""

from trinity.compat import install_import_hook

install_import_hook()  # other modules are found by the tables there
