"""About forty mistakes that taught most, each with the tests that must notice it.

`table` lists them, `edits` makes them in the code of a function while tests run, and
`python -m tests.mutants` tries each. A mistake is named by its function and by what is changed in
it (an operator, a comparison, a call), so that new wording, formatting and variable names do not
touch it. For mistakes at every line of a module: `python -m scripts.mutants`.
"""
