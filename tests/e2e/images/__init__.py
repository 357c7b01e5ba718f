"""What the images hold, tried without Docker; needs a package index. Run by `make check-images`.

Those with engines and training, too: `make check-images-heavy`.
"""
