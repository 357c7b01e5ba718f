"""Trinity-RFT as an import path."""
