"""Any records to paired differences, tables, charts, one page."""
