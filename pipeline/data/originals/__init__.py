"""Original files: fetching and verifying them, and the formats that several data sets share."""
