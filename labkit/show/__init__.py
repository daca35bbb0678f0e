"""How the nouns show themselves in a notebook: HTML of tables and bars that any theme shows and any sanitiser leaves
readable."""
