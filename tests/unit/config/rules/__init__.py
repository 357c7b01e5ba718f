"""Rules that files for Trinity-RFT rely on, by section: a case each."""
