"""Analysis of a folder of dumps, with no service: the same parser, match rules and engine."""
