"""The git repository of a task: names of images, revisions, branches, trees of files."""
