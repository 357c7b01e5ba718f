"""Import paths of Trinity-RFT, for files that were written for it."""

from trinity.compat import install_import_hook

install_import_hook()  # other modules of Trinity-RFT's are found by the tables there
