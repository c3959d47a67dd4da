"""What the library would have to do wrong for a notebook's lesson to be false: one module a notebook, `m07` for 07.

Each public function of a module is one mutation: its docstring says what the library does wrong. The source of the
function runs in the first cell of the notebook's kernel, so it imports what it needs and refers to nothing outside.
"""
