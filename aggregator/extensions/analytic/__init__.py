"""Federation in closed form: keep every device's statistic, solve their sum."""
