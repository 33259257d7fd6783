"""Repository images: names, branches inside an image, checkouts."""
