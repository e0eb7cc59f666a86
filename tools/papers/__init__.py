"""The four papers: their equations, tables, figures and claims, and the pages made of them."""
