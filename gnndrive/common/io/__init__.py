"""Files: long reads and writes past the page cache, small files, checksums, errors of writing."""
