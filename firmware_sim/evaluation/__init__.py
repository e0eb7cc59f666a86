"""Compare forecasts on a fleet's own records: tables in, one comparison and one page out."""
