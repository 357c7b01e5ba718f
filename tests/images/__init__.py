"""What the images hold, tried without Docker; needs a package index. Run by `make check-images`."""
