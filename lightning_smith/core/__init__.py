"""What every room uses: errors, files, processes, progress. Imports nothing else of this package."""
