"""The sections of the page of a recalibration, one a file: text in HTML from a report and its details."""
