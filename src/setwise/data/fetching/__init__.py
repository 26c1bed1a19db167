"""From a URL, an archive or a folder to plain files within limits, and to decoded images that are kept."""
