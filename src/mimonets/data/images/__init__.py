"""Image data sets, their files and their augmentation."""
